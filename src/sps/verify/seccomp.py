"""A list of system calls that a judge may make; every other one fails from then on.

Linux on x86-64 and arm64 alone. No call that opens a socket, starts a program or a process, opens a
file for writing, or reaches another process is on the list, so what runs here cannot do these
things whatever its language: it is the kernel that says no. Unknown calls fail with ENOSYS, which
libraries take for an old kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH_*, column
# name: number on x86-64, number on arm64; -1: there is none
_FREE = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66),
    "pread64": (17, 67), "pwrite64": (18, 68), "close": (3, 57), "close_range": (436, 436),
    "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, -1), "lstat": (6, -1),
    "statx": (332, 291), "lseek": (8, 62), "statfs": (137, 43), "fstatfs": (138, 44),
    "access": (21, -1), "faccessat": (269, 48), "faccessat2": (439, 439), "getcwd": (79, 17),
    "readlink": (89, -1), "readlinkat": (267, 78), "getdents": (78, -1), "getdents64": (217, 61),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214),
    "mremap": (25, 216), "madvise": (28, 233), "mincore": (27, 232),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132), "pause": (34, -1), "alarm": (37, -1), "restart_syscall": (219, 128),
    "pipe": (22, -1), "pipe2": (293, 59), "dup": (32, 23), "dup2": (33, -1), "dup3": (292, 24),
    "select": (23, -1), "pselect6": (270, 72), "poll": (7, -1), "ppoll": (271, 73),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, -1),
    "epoll_pwait": (281, 22), "eventfd2": (290, 19), "futex": (202, 98),
    "set_tid_address": (218, 96), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "rseq": (334, 293), "membarrier": (324, 283), "getrandom": (318, 278),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "getpriority": (140, 141), "getcpu": (309, 168),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, -1), "times": (100, 153),
    "getitimer": (36, 102), "setitimer": (38, 103), "getpid": (39, 172), "getppid": (110, 173),
    "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "getgroups": (115, 158), "getresuid": (118, 148),
    "getresgid": (120, 150), "getpgid": (121, 155), "getpgrp": (111, -1), "getsid": (124, 156),
    "uname": (63, 160), "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179),
    "wait4": (61, 260), "waitid": (247, 95), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_THREAD = 0x10000  # CLONE_THREAD
# F_SETOWN and F_SETSIG are missing: with them a file can be made to send a signal to any process.
_FCNTL = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, ...

_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NO_SUCH, _DENIED = 0x50000 | errno.ENOSYS, 0x50000 | errno.EPERM

Code = list[tuple[int, int, int, int]]  # operation, jump if true, jump if false, operand


def lock() -> bool:
    """Put this process under the list; False where the system has no such thing."""
    program = _program(os.getpid())
    if not program:
        return False
    code = b"".join(struct.pack("<HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code)
    # struct sock_fprog: a length, and after padding the address of the program.
    head = ctypes.create_string_buffer(
        struct.pack("@HxxxxxxP", len(program), ctypes.addressof(buffer))
    )
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    if prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS: what makes the next one anybody's right
        return False
    return prctl(22, 2, ctypes.addressof(head), 0, 0) == 0  # PR_SET_SECCOMP, MODE_FILTER


def _program(pid: int) -> Code:
    """The filter as the kernel's small machine reads it, for the process of this number."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return []
    if struct.calcsize("P") != 8:
        return []
    architecture, column = _ARCHITECTURES[platform.machine()]
    code: Code = [(_LOAD, 0, 0, 4), (_JEQ, 1, 0, architecture), (_RET, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, 0))
    if column == 0:  # the x32 way of calling has numbers of its own
        code += [(_JGE, 0, 1, 0x40000000), (_RET, 0, 0, _KILL)]
    for (x86, arm), block in _guarded(pid):
        number = (x86, arm)[column]
        if number >= 0:
            code += [(_JEQ, 0, len(block), number), *block]
    for numbers in _FREE.values():
        if numbers[column] >= 0:
            code += [(_JEQ, 0, 1, numbers[column]), (_RET, 0, 0, _ALLOW)]
    return [*code, (_RET, 0, 0, _NO_SUCH)]


def _guarded(pid: int) -> list[tuple[tuple[int, int], Code]]:
    """Calls whose arguments decide. Each block ends in a return."""
    return [
        ((2, -1), _without(1, _WRITING)),  # open
        ((257, 56), _without(2, _WRITING)),  # openat
        ((56, 220), _with(0, _THREAD)),  # clone: threads, never processes
        ((62, 129), _among(0, (pid,))),  # kill
        ((234, 131), _among(0, (pid,))),  # tgkill
        ((302, 261), _null(2)),  # prlimit64 that sets nothing
        ((72, 25), _among(1, _FCNTL)),
        ((16, 29), _among(1, _IOCTL)),
    ]


def _argument(index: int, high: bool = False) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, 16 + 8 * index + 4 * high)


def _without(index: int, bits: int) -> Code:
    return [_argument(index), (_JSET, 0, 1, bits), (_RET, 0, 0, _DENIED), (_RET, 0, 0, _ALLOW)]


def _with(index: int, bits: int) -> Code:
    return [_argument(index), (_JSET, 0, 1, bits), (_RET, 0, 0, _ALLOW), (_RET, 0, 0, _DENIED)]


def _among(index: int, values: tuple[int, ...]) -> Code:
    tests: Code = [(_JEQ, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [_argument(index), *tests, (_RET, 0, 0, _DENIED), (_RET, 0, 0, _ALLOW)]


def _null(index: int) -> Code:
    low, high = _argument(index), _argument(index, high=True)
    deny, allow = (_RET, 0, 0, _DENIED), (_RET, 0, 0, _ALLOW)
    return [low, (_JEQ, 0, 2, 0), high, (_JEQ, 1, 0, 0), deny, allow]
