"""Build and install hvd_dynamic. Its dependencies are prepared separately, see the comments below."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent


def read(name):
    """Return a file's text, or nothing if it is not there."""
    path = HERE / name
    return path.read_text(encoding='utf-8') if path.exists() else ''


VERSION = re.search(r"^__version__ = '([^']+)'", read('hvd_dynamic/version.py'), re.M).group(1)

# MXNet and Horovod are not listed. MXNet comes as one of several distributions (mxnet, mxnet-cu112, ...) that
# all hold the module `mxnet`; naming one would install it over the other. Horovod has to be compiled, after
# MXNet and with the right options, which pip would not do. `hvd-dynamic doctor` says what is missing.
INSTALL_REQUIRES = [
    'numpy>=1.21,<1.24',  # MXNet 1.9.1 uses np.bool, which numpy 1.24 took away
    'matplotlib>=3.5,<3.9',
    'psutil>=5.8',
]

EXTRAS = {
    # GluonCV asks for `opencv-python` without a bound, and its newest wants numpy 2, so it is bounded here.
    # It needs libGL: on a machine without a screen, install opencv-python-headless, and GluonCV with
    # --no-deps, in place of this extra, as tools/make_venv.py does.
    'examples': [
        'gluoncv==0.10.5.post0',
        'opencv-python>=4.5,<4.9',
        'pandas>=1.4,<2.1',
        'scipy>=1.8,<1.12',
        'scikit-learn>=1.1,<1.5',  # holds the handwritten digits
    ],
    'dev': ['pytest>=7,<8', 'pytest-timeout>=2.1', 'hypothesis>=6.60', 'ruff==0.8.6'],
}

setup(
    name='hvd-dynamic',
    version=VERSION,
    description='A Horovod plugin for elastic training with Gluon (Apache MXNet)',
    long_description=read('README.md'),
    long_description_content_type='text/markdown',
    packages=find_packages(include=['hvd_dynamic*']),
    python_requires='>=3.10,<3.12',
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS,
    entry_points={'console_scripts': ['hvd-dynamic = hvd_dynamic.cli:main']},
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
)
