"""One checkpoint file: whole or not at all, and nothing believed that is not what was written."""
import errno
import fcntl
import hashlib
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from hvd_dynamic import checkpointfile
from hvd_dynamic.checkpointfile import CheckpointFault, CheckpointFile, write

ARRAYS = [np.arange(6, dtype='float32').reshape(2, 3), np.array(2.5), np.zeros((0, 3), 'int64'), np.array([True, False]),
          np.arange(5, dtype='float16')[::2], np.array([1, -2], 'int8'), np.array([np.nan, -0.0, np.inf])]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / 'checkpoint-7.hvd'
    write(path, {'update': 7}, ARRAYS)
    return path


def made(path, header, arrays=b'', magic=b'\x89HVDCP\r\n', version=1, length=None):
    """Write a file that is whole (its SHA-256 is right) and says whatever is asked for."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = struct.pack('<8sIQ', magic, version, len(text) if length is None else length) + text + arrays
    path.write_bytes(data + hashlib.sha256(data).digest())
    return path


def fault(path):
    with pytest.raises(CheckpointFault) as caught:
        CheckpointFile(path)
    message = str(caught.value)
    assert message.startswith(f'{path} '), message
    return message[len(f'{path} '):]


# -- what is written is read --------------------------------------------------------------------------------------

def test_arrays_come_back_bit_for_bit_with_shape_and_type(path):
    with CheckpointFile(path) as file:
        read = list(file.arrays())
        assert file.header['update'] == 7 and len(file) == len(ARRAYS)
    for a, b in zip(ARRAYS, read, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_bytes_are_little_endian_whatever_the_array_is(tmp_path):
    write(tmp_path / 'a', {}, [np.array([1, 2], '>i4')])
    with CheckpointFile(tmp_path / 'a') as file:
        array, = file.arrays()
        assert array.dtype.str == '<i4' and array.tolist() == [1, 2]
    assert struct.pack('<2i', 1, 2) in (tmp_path / 'a').read_bytes()


def test_length_is_told_and_nothing_else_is_left_in_the_folder(tmp_path):
    assert write(tmp_path / 'a', {}, ARRAYS) == (tmp_path / 'a').stat().st_size
    assert os.listdir(tmp_path) == ['a']


@pytest.mark.parametrize('dtype', ['longdouble', 'complex64', 'object', 'datetime64[s]', 'U3'])
def test_types_that_the_format_has_not_are_refused(dtype, tmp_path):
    with pytest.raises(TypeError, match='array 1 has the type .*, which a checkpoint cannot hold; use booleans'):
        write(tmp_path / 'a', {}, [np.zeros(1), np.zeros(1, dtype)])
    assert os.listdir(tmp_path) == []


# -- damage -------------------------------------------------------------------------------------------------------

def test_file_cut_off_at_any_byte_is_refused(path):
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert 'is damaged' in fault(path) or length == 0 and 'is empty' in fault(path), length


def test_any_flipped_byte_is_found(path):
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1:])
        what = fault(path)
        expected = 'is not a checkpoint' if place < 8 else 'version' if place < 12 else 'is damaged'
        assert expected in what, (place, what)


def test_bytes_at_the_end_are_found(path):
    path.write_bytes(path.read_bytes() + b'\0')
    assert 'is damaged: the SHA-256' in fault(path)


def test_other_files_are_told_from_damaged_ones(tmp_path):
    (tmp_path / 'a').write_bytes(b'\x80\x04\x95 a pickle, say')
    assert fault(tmp_path / 'a') == 'is not a checkpoint of hvd_dynamic: it begins with other bytes'


def test_newer_version_of_the_format_is_told(tmp_path):
    what = fault(made(tmp_path / 'a', {'arrays': []}, version=2))
    assert 'has version 2 of the format' in what and 'reads version 1' in what and 'newer one' in what


@pytest.mark.parametrize('length', [2 ** 63, 2 ** 40, 1000])
def test_header_longer_than_the_file_is_not_allocated(length, tmp_path):
    assert 'within its header' in fault(made(tmp_path / 'a', {'arrays': []}, length=length))


@pytest.mark.parametrize('header', [
    b'{', b'\xff', b'[]', b'3', b'{}', {'arrays': None}, {'arrays': 3}, {'arrays': [3]}, {'arrays': [['<f4']]},
    {'arrays': [['|O', [1]]]}, {'arrays': [['<f16', [1]]]}, {'arrays': [['<M8[s]', [1]]]}, {'arrays': [[['a', '<f4'], [1]]]},
    {'arrays': [['<f4', [-1]]]}, {'arrays': [['<f4', [-1, -2]]]}, {'arrays': [['<f4', [True]]]},
    {'arrays': [['<f4', [1.0]]]}, {'arrays': [['<f4', '2']]}, {'arrays': [['<f4', {}]]}, {'arrays': [['<f4', [0, 2 ** 70]]]},
    {'arrays': [['<f4', [1] * 40]]}, b'[' * 100000])
def test_nonsense_in_a_header_is_a_fault_and_no_crash(header, tmp_path):
    arrays = b'\0' * 8 if b'arrays' in (header if isinstance(header, bytes) else json.dumps(header).encode()) else b''
    assert 'is damaged: its header cannot be understood' in fault(made(tmp_path / 'a', header, arrays))


@pytest.mark.parametrize('shape', [[3], [1], [2 ** 62], [2 ** 40, 2 ** 40], [0], []])
def test_arrays_of_other_lengths_than_the_file_has_are_not_allocated(shape, tmp_path):
    assert 'its arrays have other lengths' in fault(made(tmp_path / 'a', {'arrays': [['<f4', shape]]}, b'\0' * 8))


def test_file_that_becomes_shorter_while_it_is_read_is_a_fault(tmp_path):
    write(tmp_path / 'a', {}, [np.zeros(10 ** 5)] * 3)
    with CheckpointFile(tmp_path / 'a') as file:
        os.truncate(tmp_path / 'a', 10 ** 6)
        with pytest.raises(CheckpointFault, match='became shorter while it was read'):
            list(file.arrays())


# -- what is no regular file --------------------------------------------------------------------------------------

def test_missing_file_is_named(tmp_path):
    assert fault(tmp_path / 'a') == 'cannot be opened: No such file or directory'


def test_links_folders_and_pipes_are_refused_without_waiting(path, tmp_path):
    (tmp_path / 'link').symlink_to(path)
    (tmp_path / 'folder').mkdir()
    os.mkfifo(tmp_path / 'pipe')
    assert fault(tmp_path / 'link') == 'cannot be opened: it is a symbolic link'
    assert fault(tmp_path / 'folder') == fault(tmp_path / 'pipe') == 'is not a regular file'


# -- names --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('name', ['checkpoint-01.hvd', 'checkpoint-.hvd', 'checkpoint--1.hvd', 'checkpoint-1.hvd.tmp',
                                  'checkpoint-1.hvd\n', 'xcheckpoint-1.hvd', '../checkpoint-1.hvd', 'checkpoint-1/..hvd',
                                  'checkpoint-\u0663.hvd', 'checkpoint-1e3.hvd', 'CHECKPOINT-1.HVD'])
def test_only_exact_names_are_ours(name):
    assert checkpointfile.update_of(name) is None


def test_names_go_both_ways():
    for update in (0, 1, 10, 123456789):
        assert checkpointfile.update_of(checkpointfile.file_name(update)) == update


# -- writes that fail ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize('broken', ['os.fsync', 'os.replace', 'hashlib.sha256'])
def test_failed_write_leaves_the_old_file_and_nothing_else(broken, path, monkeypatch):
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(f'hvd_dynamic.checkpointfile.{broken}', full)
    with pytest.raises(OSError, match='No space left'):
        write(path, {'update': 7}, [np.zeros(9)])
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


def test_disk_that_is_full_in_the_middle_of_a_file(path):
    """A real failure of write(2), by a limit on the size of files."""
    script = f'''if 1:
        import resource, signal, sys
        import numpy as np
        from pathlib import Path
        from hvd_dynamic.checkpointfile import write
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000000, 3000000))
        try:
            write(Path({str(path)!r}), {{}}, [np.zeros(10 ** 6)])
        except OSError as error:
            sys.exit(f'failed with {{error.errno}}')
    '''
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == f'failed with {errno.EFBIG}'
    assert os.listdir(path.parent) == [path.name] and not fault_or_none(path)


def fault_or_none(path):
    try:
        CheckpointFile(path).close()
    except CheckpointFault as error:
        return str(error)


def test_killed_writer_leaves_the_previous_checkpoint_and_its_leftovers_are_removed(tmp_path):
    """kill -9 of a real process at different moments of its writes."""
    script = f'''if 1:
        from pathlib import Path
        import numpy as np
        from hvd_dynamic.checkpointfile import write
        for update in range(1, 10 ** 6):
            write(Path({str(tmp_path)!r}, f'checkpoint-{{update % 3}}.hvd'), {{'update': update}}, [np.zeros(10 ** 6)])
            print(update, flush=True)
    '''
    interrupted = 0
    for attempt in range(3):
        writer = subprocess.Popen([sys.executable, '-c', script], stdout=subprocess.PIPE, text=True)
        try:
            while not writer.stdout.readline().startswith('2'):
                pass
            if attempt:             # not only between two files
                end = time.monotonic() + 30
                while not leftovers(tmp_path) and time.monotonic() < end:
                    pass
                time.sleep(0.002 * attempt)
        finally:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
            writer.stdout.close()
        interrupted += bool(leftovers(tmp_path))
        whole = [name for name in os.listdir(tmp_path) if checkpointfile.update_of(name) is not None]
        assert len(whole) >= 2 and all(fault_or_none(tmp_path / name) is None for name in whole)
    assert interrupted, 'no writer was killed in the middle of a file'
    checkpointfile.remove_leftovers(tmp_path)
    assert not leftovers(tmp_path) and len(os.listdir(tmp_path)) == len(whole)


def leftovers(folder):
    return [name for name in os.listdir(folder) if name.endswith('.tmp')]


# -- nothing else is touched --------------------------------------------------------------------------------------

LEFTOVER = '.checkpoint-5.hvd.0123456789abcdef.tmp'


def test_leftover_of_a_writer_that_lives_is_kept(tmp_path):
    with open(tmp_path / LEFTOVER, 'wb') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        checkpointfile.remove_leftovers(tmp_path)
        assert os.listdir(tmp_path) == [LEFTOVER]
    checkpointfile.remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == []


def test_only_regular_files_of_exactly_our_names_are_removed(tmp_path):
    folder, outside = tmp_path / 'folder', tmp_path / 'outside'
    folder.mkdir()
    outside.write_text('precious')
    (folder / LEFTOVER).symlink_to(outside)
    (folder / LEFTOVER.replace('-5', '-6')).mkdir()
    os.mkfifo(folder / LEFTOVER.replace('-5', '-7'))
    for name in ('.checkpoint-5.hvd.tmp', '.checkpoint-5.hvd.0123.tmp', 'x' + LEFTOVER, LEFTOVER + '~', LEFTOVER[1:]):
        (folder / name).write_text('')
    before = sorted(os.listdir(folder))
    checkpointfile.remove_leftovers(folder)
    assert sorted(os.listdir(folder)) == before and outside.read_text() == 'precious'


def test_a_link_in_the_way_is_not_written_through(tmp_path, monkeypatch):
    """Neither one of the temporary name nor one of the name itself."""
    outside = tmp_path / 'outside'
    outside.write_text('precious')
    monkeypatch.setattr('secrets.token_hex', lambda n: '0123456789abcdef')
    path = tmp_path / 'checkpoint-5.hvd'
    path.symlink_to(outside)
    write(path, {}, [])
    assert outside.read_text() == 'precious' and not path.is_symlink() and fault_or_none(path) is None
    (tmp_path / LEFTOVER).symlink_to(outside)
    with pytest.raises(FileExistsError):
        write(path, {}, [])
    assert outside.read_text() == 'precious' and stat.S_ISLNK(os.lstat(tmp_path / LEFTOVER).st_mode)


def test_a_folder_in_the_way_is_an_error(tmp_path):
    (tmp_path / 'checkpoint-5.hvd').mkdir()
    with pytest.raises(OSError):
        write(tmp_path / 'checkpoint-5.hvd', {}, [])
    assert os.listdir(tmp_path) == ['checkpoint-5.hvd']
