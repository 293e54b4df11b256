"""The images and masks of segmentation data sets on disk."""
