"""What a process may no longer do: Landlock, seccomp allow-lists and resource limits, by ctypes.

Needs no privilege and holds for root, too. It runs inside the sandbox's interpreter, so it imports nothing of ours.
Landlock: https://docs.kernel.org/userspace-api/landlock.html. Seccomp: seccomp(2) and linux/filter.h.
Only Linux on x86-64: numbers of system calls differ elsewhere.
"""

import ctypes
import errno
import math
import os
import resource
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# linux/prctl.h and linux/capability.h
_PDEATHSIG, _DUMPABLE, _SECCOMP, _NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_FILTER, _CAPABILITY_VERSION = 2, 0x20080522

# linux/landlock.h; the numbers of its system calls are the same on every architecture
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights on files an ABI knows; later ones know no more."""

# System calls of x86-64, asm/unistd_64.h. Everything else fails with EPERM: no sockets, processes, threads, signals
# to others, mounts, namespaces, keys, io_uring, bpf, shared memory, changes of files or limits.
_ALLOWED = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "pread64": 17, "readv": 19, "writev": 20, "access": 21, "select": 23, "sched_yield": 24, "mremap": 25,
    "madvise": 28, "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38,
    "getpid": 39, "exit": 60, "uname": 63, "getcwd": 79, "gettimeofday": 96, "getrusage": 98, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131, "gettid": 186,
    "time": 201, "futex": 202, "sched_getaffinity": 204, "getdents64": 217, "restart_syscall": 219,
    "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262,
    "faccessat": 269, "pselect6": 270, "ppoll": 271, "dup3": 292, "getrandom": 318, "statx": 332, "faccessat2": 439,
}  # fmt: skip
# Of these, what a pure program may use, and what fails with EPERM. Everything else kills it: clocks, ids, randomness,
# timers, threads and processes.
_PURE = ("read", "write", "close", "lseek", "mmap", "mprotect", "munmap", "brk", "rt_sigaction", "rt_sigprocmask",
         "rt_sigreturn", "mremap", "madvise", "exit", "sigaltstack", "futex", "exit_group")  # fmt: skip
_PURE_REFUSED = ("stat", "fstat", "lstat", "access", "dup", "getcwd", "getdents64", "newfstatat", "faccessat", "statx")
_OPEN, _OPENAT, _MMAP, _MPROTECT, _IOCTL, _FCNTL, _READLINK = 2, 257, 9, 10, 16, 72, 89
_EXECUTABLE = 4  # PROT_EXEC
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_IOCTLS = (0x5401, 0x5450, 0x5451)  # TCGETS, FIONCLEX, FIOCLEX
_FCNTLS = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: none that sends a signal or locks

# linux/bpf_common.h and linux/seccomp.h
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X86_64, _X32 = 0xC000003E, 0x40000000
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # allowed, EPERM, the process is killed


class Unavailable(Exception):
    """This machine cannot confine a process."""


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _instruction(code: int, value: int = 0, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _when(test: int, value: int, then: bytes) -> bytes:
    """`then`, where what was loaded last passes a test."""
    return _instruction(test, value, 0, len(then) // 8) + then


def _program(pure: bool) -> bytes:
    """The seccomp filter, as BPF."""
    refuse, allow, kill = (_instruction(_RETURN, action) for action in (_REFUSE, _ALLOW, _KILL))

    def argument(number: int) -> bytes:
        return _instruction(_LOAD, _ARGUMENTS + 8 * number)  # its lower 32 bits

    def only(values: tuple[int, ...]) -> bytes:
        return argument(1) + b"".join(_when(_JUMP_EQUAL, value, allow) for value in values) + refuse

    def without(number: int, bits: int) -> bytes:
        return argument(number) + _when(_JUMP_ANY_BIT, bits, refuse) + allow

    calls = {_ALLOWED[name]: allow for name in (_PURE if pure else _ALLOWED)}
    if pure:
        calls |= dict.fromkeys((_OPEN, _OPENAT, _IOCTL, _FCNTL, _READLINK), refuse)
        calls |= {_ALLOWED[name]: refuse for name in _PURE_REFUSED}
        calls |= dict.fromkeys((_MMAP, _MPROTECT), without(2, _EXECUTABLE))
    else:
        calls |= {_OPEN: without(1, _WRITING), _OPENAT: without(2, _WRITING)}
        calls |= {_IOCTL: only(_IOCTLS), _FCNTL: only(_FCNTLS)}
    other_machine = _instruction(_LOAD, _ARCHITECTURE) + _instruction(_JUMP_EQUAL, _X86_64, 1) + kill
    x32 = _instruction(_LOAD, _NUMBER) + _when(_JUMP_AT_LEAST, _X32, kill)
    tests = b"".join(_when(_JUMP_EQUAL, call, then) for call, then in calls.items())
    return other_machine + x32 + tests + (kill if pure else refuse)


class Confinement:
    """What a program may use, prepared once; `enter` is cheap. `rules` is an open file that it needs.

    It gives up all capabilities of this process, and the right to get any.

    Args:
        readable: files and folders that may be read; nothing may be written.
        pure: whether a program may use nothing that says which run it is: files, ids, threads, randomness of the
            kernel's, new machine code. Clocks show a random time.

    Raises:
        Unavailable: the kernel has no Landlock or no seccomp, or another processor.
    """

    def __init__(self, readable: list[str], pure: bool):
        if os.uname().machine != "x86_64":
            raise Unavailable("it runs on x86-64 alone")
        abi = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
        if abi < 1:
            raise Unavailable("the kernel has no Landlock")
        files = (1 << _RIGHTS.get(abi, 16)) - 1
        network, scopes = (3 if abi >= 4 else 0), (3 if abi >= 6 else 0)
        words = struct.pack("=QQQ", files, network, scopes)[: 8 * (1 + (abi >= 4) + (abi >= 6))]
        self.rules = _check(_libc.syscall(_CREATE_RULESET, words, ctypes.c_size_t(len(words)), 0))
        for path in filter(os.path.exists, readable):
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rights = _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE
            _check(_libc.syscall(_ADD_RULE, self.rules, 1, struct.pack("=Qi", rights, opened), 0))
            os.close(opened)
        _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
        _check(_libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)))
        program = _program(pure)
        self._filter = _Filter(len(program) // 8, program)
        self._clocks = _clock_pages() if pure else None

    def enter(self, cpu_seconds: float, memory_bytes: int, parent: int) -> None:
        """Confine this process for ever. It ends with its parent, and its memory is hidden from other processes."""
        for kind, most in (
            (resource.RLIMIT_CPU, math.ceil(cpu_seconds) + 1),
            (resource.RLIMIT_AS, memory_bytes),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (most, most))
        _check(_libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        _check(_libc.prctl(_DUMPABLE, 0, 0, 0, 0))
        if os.getppid() != parent:
            os._exit(1)
        _check(_libc.syscall(_RESTRICT_SELF, self.rules, 0))
        os.close(self.rules)
        if self._clocks:
            _set_clocks(*self._clocks)
        _check(_libc.prctl(_SECCOMP, _SECCOMP_FILTER, ctypes.byref(self._filter), 0, 0))


def _clock_pages() -> tuple[int, int]:
    """Address and size of the pages from which the kernel's code reads clocks without a system call. That code follows."""
    _libc.getauxval.restype = ctypes.c_ulong
    begin = end = _libc.getauxval(33)  # AT_SYSINFO_EHDR
    # MADV_COLD is refused for pages of the kernel's (EINVAL), and for nothing else that is mapped.
    while _libc.madvise(ctypes.c_ulong(begin - 4096), ctypes.c_ulong(4096), 20) and ctypes.get_errno() == errno.EINVAL:
        begin -= 4096
    if begin == end:
        raise Unavailable("the kernel has no vDSO")
    return begin, end - begin


def _set_clocks(address: int, size: int) -> None:
    """Put other pages there, so that this process reads a random time. include/vdso/datapage.h: a sequence number, the
    clock's kind (1: the processor's counter), words that turn the counter into time, then seconds and nanoseconds."""
    numbers = [number % 2**33 for number in struct.unpack(f"{size // 8}Q", os.urandom(size))]
    numbers[:5] = 1 << 32, 0, 0, 0, numbers[4] % 32 << 32  # a factor of 0, so that the counter does not count
    place, length = ctypes.c_ulong(address), ctypes.c_ulong(size)
    _libc.mmap(place, length, 3, 0x32, -1, ctypes.c_ulong(0))  # read and write; private, anonymous, just there
    ctypes.memmove(address, struct.pack(f"{len(numbers)}Q", *numbers), size)


def _check(result: int) -> int:
    if result < 0:
        raise Unavailable(os.strerror(ctypes.get_errno()))
    return result
