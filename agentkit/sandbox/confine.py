"""Linux confinement through ctypes: Landlock, a seccomp allow-list, resource limits.

Loaded by the zygote only, before any untrusted code; needs no privilege and no binary. Every function raises
OSError where the kernel refuses, so that a missing layer is noticed and never skipped. Leaves out everything
but Linux on x86_64 and aarch64. Sources: man 2 seccomp, man 7 landlock; system call numbers
from the kernel's unistd headers (x86_64 and the generic table that aarch64 uses).
"""

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(result: int, what: str) -> int:
    """What a C function gave. Raises OSError with the kernel's reason where that is negative."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(number: int, *arguments: int | bytes | ctypes.Array | None) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words), f"system call {number}")


def process_handle(process: int) -> int:
    """A file that can be read once the process has ended; a conda Python has no name for the call."""
    return _syscall(434, process, 0)


# ---- seccomp
# architecture -> its column in the tables below, AUDIT_ARCH
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# name, x86_64, aarch64; "-" where the architecture has none
_ALLOWED = """
read 0 63,write 1 64,readv 19 65,writev 20 66,pread64 17 67,pwrite64 18 68,preadv 295 69,pwritev 296 70,
lseek 8 62,close 3 57,close_range 436 436,dup 32 23,dup2 33 -,dup3 292 24,pipe 22 -,pipe2 293 59,flock 73 32,
open 2 -,openat 257 56,creat 85 -,stat 4 -,lstat 6 -,fstat 5 80,newfstatat 262 79,statx 332 291,access 21 -,
faccessat 269 48,faccessat2 439 439,readlink 89 -,readlinkat 267 78,getdents 78 -,getdents64 217 61,
getcwd 79 17,chdir 80 49,fchdir 81 50,statfs 137 43,fstatfs 138 44,ftruncate 77 46,fallocate 285 47,
fsync 74 82,fdatasync 75 83,fadvise64 221 223,sendfile 40 71,copy_file_range 326 285,mkdir 83 -,
mkdirat 258 34,rmdir 84 -,unlink 87 -,unlinkat 263 35,rename 82 -,renameat 264 38,renameat2 316 276,
symlink 88 -,symlinkat 266 36,umask 95 166,mmap 9 222,munmap 11 215,mremap 25 216,mprotect 10 226,
madvise 28 233,brk 12 214,msync 26 227,membarrier 324 283,futex 202 98,set_robust_list 273 99,
set_tid_address 218 96,rseq 334 293,sched_yield 24 124,sched_getaffinity 204 123,sched_getparam 143 121,
sched_getscheduler 145 120,sched_get_priority_max 146 125,sched_get_priority_min 147 126,getpriority 140 141,
getrandom 318 278,getcpu 309 168,exit 60 93,exit_group 231 94,wait4 61 260,waitid 247 95,
restart_syscall 219 128,rt_sigaction 13 134,rt_sigprocmask 14 135,rt_sigreturn 15 139,rt_sigpending 127 136,
rt_sigsuspend 130 133,rt_sigtimedwait 128 137,sigaltstack 131 132,pause 34 -,alarm 37 -,setitimer 38 103,
getitimer 36 102,timer_create 222 107,timer_settime 223 110,timer_gettime 224 108,timer_delete 226 111,
timer_getoverrun 225 109,timerfd_create 283 85,timerfd_settime 286 86,timerfd_gettime 287 87,eventfd2 290 19,
signalfd4 289 74,nanosleep 35 101,clock_nanosleep 230 115,clock_gettime 228 113,clock_getres 229 114,
gettimeofday 96 169,time 201 -,times 100 153,poll 7 -,ppoll 271 73,select 23 -,pselect6 270 72,
epoll_create 213 -,epoll_create1 291 20,epoll_ctl 233 21,epoll_wait 232 -,epoll_pwait 281 22,getpid 39 172,
getppid 110 173,gettid 186 178,getuid 102 174,geteuid 107 175,getgid 104 176,getegid 108 177,
getgroups 115 158,getresuid 118 148,getresgid 120 150,getpgrp 111 -,getpgid 121 155,getsid 124 156,
uname 63 160,sysinfo 99 179,getrusage 98 165,getrlimit 97 163,arch_prctl 158 -,recvfrom 45 207,
shutdown 48 210,getsockopt 55 209,setsockopt 54 208,getsockname 51 204,getpeername 52 205
"""
# answered with success and not done: Landlock does not rule over modes and times, and shutil.copy should work
_PRETENDED = """
chmod 90 -,fchmod 91 52,fchmodat 268 53,utime 132 -,utimes 235 -,utimensat 280 88,futimesat 261 -
"""
# extended attributes: answered as a file system without them does
_ABSENT = """
getxattr 191 8,lgetxattr 192 9,fgetxattr 193 10,listxattr 194 11,llistxattr 195 12,flistxattr 196 13
"""
_CHECKED = """
clone 56 220,clone3 435 435,kill 62 129,tkill 200 130,tgkill 234 131,prlimit64 302 261,prctl 157 167,
ioctl 16 29,fcntl 72 25,socketpair 53 199,sendto 44 206
"""
_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020080  # every CLONE_NEW* flag
_AF_UNIX = _SOCK_STREAM = 1
_WORD, _WHOLE = 2**32 - 1, 2**64 - 1  # an argument's low half, where the kernel reads an int, and all of it
_PRCTL = (15, 16, 3, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_SET_VMA
_IOCTL = (
    0x5401,
    0x5413,
    0x541B,
    0x5421,
    0x5450,
    0x5451,
)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
_FCNTL = (*range(8), 36, 37, 38, 1030, 1032)  # descriptors, flags, locks; no owner, signal, lease, pipe size
_NEWEST = 440  # numbers from here on are unknown to this table: ENOSYS lets the C library fall back
_EPERM, _ENOSYS, _ENOTSUP = 1, 38, 95
_LOAD, _JEQ, _JGE, _AND, _RET = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant
_PASS, _DENY = (_RET, 0, 0, _ALLOW), (_RET, 0, 0, _ERRNO | _EPERM)
_UNKNOWN = [(_RET, 0, 0, _ERRNO | _ENOSYS)]


def _numbers(table: str, column: int) -> dict[str, int]:
    rows = [entry.split() for entry in table.replace("\n", "").split(",")]
    return {name: int(pair[column]) for name, *pair in rows if pair[column] != "-"}


def _argument(index: int, high: bool = False) -> _Instruction:
    return _LOAD, 0, 0, 16 + 8 * index + 4 * high


def _allow_if(argument: int, mask: int, value: int) -> list[_Instruction]:
    """EPERM where an argument's bits under the mask have another value; else go on with what follows."""
    rules: list[_Instruction] = []
    for high in (False, True):
        bits, wanted = (number >> 32 * high & _WORD for number in (mask, value))
        if bits:
            rules += [_argument(argument, high), (_AND, 0, 0, bits), (_JEQ, 1, 0, wanted), _DENY]
    return rules


def _one_of(index: int, values: Iterable[int]) -> list[_Instruction]:
    """Allow when the low word of an argument is one of these, else EPERM."""
    rules: list[_Instruction] = [_argument(index)]
    for value in values:
        rules += [(_JEQ, 0, 1, value), _PASS]
    return [*rules, _DENY]


def _rules(column: int) -> dict[int, list[_Instruction]]:
    """What is done about each system call of an architecture, by number."""
    rules = dict.fromkeys(_numbers(_ALLOWED, column).values(), [_PASS])
    rules |= dict.fromkeys(_numbers(_PRETENDED, column).values(), [(_RET, 0, 0, _ERRNO)])
    rules |= dict.fromkeys(_numbers(_ABSENT, column).values(), [(_RET, 0, 0, _ERRNO | _ENOTSUP)])
    checked = {
        "clone": [*_allow_if(0, _CLONE_THREAD | _CLONE_NEW, _CLONE_THREAD), _PASS],
        "clone3": _UNKNOWN,
        "prlimit64": _one_of(0, [0]),
        "prctl": _one_of(0, _PRCTL),
        "ioctl": _one_of(1, _IOCTL),
        "fcntl": _one_of(1, _FCNTL),
        # asyncio's own wake-up pipe, and what is sent through it: to no address
        "socketpair": [*_allow_if(0, _WORD, _AF_UNIX), *_allow_if(1, 0xF, _SOCK_STREAM), _PASS],
        "sendto": [*_allow_if(4, _WHOLE, 0), _PASS],
    }
    numbers = _numbers(_CHECKED, column)
    return rules | {numbers[name]: instructions for name, instructions in checked.items()}


class Filter:
    """The seccomp program, an allow-list: no exec, fork, sockets, signals to others, mounts, tracing."""

    def __init__(self) -> None:
        machine = platform.machine()
        if machine not in ARCHITECTURES:
            raise OSError(_ENOSYS, f"no table of system calls for {machine}")
        column, audit = ARCHITECTURES[machine]
        program = [(_LOAD, 0, 0, 4), (_JEQ, 1, 0, audit), (_RET, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
        to_itself = _one_of(0, [0])
        self._pid_offsets = []  # where this process' own number goes
        for name in ("kill", "tkill", "tgkill"):
            program += [(_JEQ, 0, len(to_itself), _numbers(_CHECKED, column)[name]), *to_itself]
            self._pid_offsets.append(8 * (len(program) - len(to_itself) + 1) + 4)
        for number, instructions in _rules(column).items():
            program += [(_JEQ, 0, len(instructions), number), *instructions]
        program += [(_JGE, 0, 1, _NEWEST), *_UNKNOWN, _DENY]
        code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
        self._code = ctypes.create_string_buffer(code, len(code))
        header = struct.pack("@HP", len(program), ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header)

    def install(self) -> None:
        """Confine this process from here on; signals reach itself only. Needs no_new_privs."""
        for offset in self._pid_offsets:
            struct.pack_into("=I", self._code, offset, os.getpid())
        none = ctypes.c_ulong(0)
        # PR_SET_SECCOMP, MODE_FILTER
        _checked(_libc.prctl(22, ctypes.c_ulong(2), self._header, none, none), "seccomp")


# ---- Landlock
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_BY_ABI = {
    1: (1 << 13) - 1,
    2: (1 << 14) - 1,
    3: (1 << 15) - 1,
    5: (1 << 16) - 1,
}  # file rights a kernel can handle
READ, READ_WRITE, LIST = "read", "read and write", "list"
# bits 1 write, 2 read, 3 list, 4 and 5 remove, 7 make folder, 8 make file, 12 make link, 13 move, 14
# truncate; never 0 execute, 6 and 9 to 11 make devices, sockets and pipes, 15 control devices
_RIGHTS = {READ: 0b1100, LIST: 0b1000, READ_WRITE: 0b0111_0001_1011_1110}
_ON_FILES = 0b0100_0000_0000_0110


def open_rules(rules: Iterable[tuple[str, str]]) -> list[tuple[int, int]]:
    """Open (path, kind) for a ``Ruleset``, as (descriptor, rights); missing paths are left out."""
    opened = []
    for path, kind in rules:
        try:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        opened.append((handle, _RIGHTS[kind] if os.path.isdir(path) else _RIGHTS[kind] & _ON_FILES))
    return opened


class Ruleset:
    """What a process may reach of files, TCP, abstract sockets and signals: nothing but these rules."""

    def __init__(self, rules: Iterable[tuple[int, int]]):
        abi = _syscall(_CREATE_RULESET, None, 0, 1)  # Landlock's version in this kernel
        self.handled = max(rights for version, rights in _BY_ABI.items() if version <= abi)
        attributes = struct.pack("=QQQ", self.handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
        size = 24 if abi >= 6 else 16 if abi >= 4 else 8
        self.handle = _syscall(_CREATE_RULESET, attributes[:size], size, 0)
        self.allow(rules)

    def allow(self, rules: Iterable[tuple[int, int]]) -> None:
        for handle, rights in rules:
            _syscall(_ADD_RULE, self.handle, 1, struct.pack("=Qi", rights & self.handled, handle), 0)

    def restrict(self) -> None:
        """Confine this process to the rules, for good."""
        _syscall(_RESTRICT_SELF, self.handle, 0)

    def close(self) -> None:
        os.close(self.handle)


# ---- limits and rights
def gain_nothing() -> None:
    """From here on neither this process nor one that it forks gains a right, as by a set-user-ID program."""
    none = ctypes.c_ulong(0)
    _checked(_libc.prctl(38, ctypes.c_ulong(1), none, none, none), "no_new_privs")
    _checked(_libc.prctl(47, ctypes.c_ulong(4), none, none, none), "ambient")  # PR_CAP_AMBIENT, CLEAR_ALL


def die_with_parent() -> None:
    _checked(_libc.prctl(1, ctypes.c_ulong(9), 0, 0, 0), "prctl")


def drop_rights() -> None:
    """No capability, now or later."""
    _checked(_libc.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)), "capset")


def limit(address_space: int, cpu_s: int, file_bytes: int, open_files: int) -> None:
    """Resource limits, for good."""
    limits = {
        "AS": address_space,
        "CPU": cpu_s,
        "FSIZE": file_bytes,
        "NOFILE": open_files,
        "CORE": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
    }
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
