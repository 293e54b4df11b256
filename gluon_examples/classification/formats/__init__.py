"""One module for each format of image data; none of them downloads anything."""
