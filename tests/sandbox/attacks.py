"""Attacks on the sandbox: programs that print THROUGH when they get what they should not.

Started by `test_attacks.py` in mount and process namespaces of its own, because an attack that gets through could mount
over the machine's folders or signal its processes. `python -m tests.sandbox.attacks WAY` prints the names of those that
got through; WAY is `namespaces` or `plain`, the sandbox with bubblewrap or without, or `subprocess`, no sandbox at all.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SECRET = os.environ.get("API_KEY", "")
_SYSCALL = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *args):
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
"""


def gets(expression: str) -> str:
    """An attack that is through if `expression` is true, and not if it raises."""
    return f"import os, sys, socket, signal, time\nif {expression}: print('THROUGH')"


def does(statement: str) -> str:
    """An attack that is through if `statement` raises nothing."""
    return f"import os, sys, socket, signal, time\n{statement}\nprint('THROUGH')"


def calls(number: int, *args: str) -> str:
    """An attack that is through if a system call succeeds."""
    return f"{_SYSCALL}\nif call({', '.join([str(number), *args])}) >= 0: print('THROUGH')"


# {file}: a secret file; {folder}: its folder, which all may write; {run}: the process that runs programs; {victim}:
# another process; {port}, {udp}, {path}, {name}: sockets that listen; {home}, {code}: a home folder, a file of ours
ATTACKS = {
    # files
    "read a secret file": gets("'sk-' in open('{file}').read()"),
    "read the users": gets("open('/etc/passwd').read()"),
    "read the passwords": gets("open('/etc/shadow').read()"),
    "read our code": gets("open('{code}').read()"),
    "list a home folder": gets("os.listdir('{home}') is not None"),
    "list the root folder": gets("os.listdir('/')"),
    "list devices": gets("os.listdir('/dev')"),
    "read a disk": gets("os.open('/dev/zero', os.O_RDONLY) >= 0"),
    "read by a magic link": gets("open('/proc/self/root{file}').read()"),
    "write a file": does("open('{folder}/left', 'w').write('x')"),
    "write to shared memory": does("open('/dev/shm/left', 'w').write('x')"),
    "write where the next program reads": does("import json; open(os.path.dirname(json.__file__) + '/left.py', 'w')"),
    "append to our code": does("open('{code}', 'a')"),
    "truncate a file": does("os.truncate('{file}', 0)"),
    "truncate a file by opening it": does("os.open('{file}', os.O_RDONLY | os.O_TRUNC)"),
    "delete a file": does("os.unlink('{file}')"),
    "rename a file": does("os.rename('{file}', '{file}2')"),
    "make a folder": does("os.mkdir('{folder}/left')"),
    "make a link": does("os.symlink('{file}', '{folder}/left')"),
    "make a hard link": does("os.link('{file}', '{folder}/left')"),
    "make a pipe": does("os.mkfifo('{folder}/left')"),
    "make a file without a name": does("os.open('{folder}', os.O_TMPFILE | os.O_RDWR)"),
    "change a mode": does("os.chmod('{file}', 0o777)"),
    "change an owner": does("os.chown('{file}', os.getuid(), os.getgid())"),
    "change a time": does("os.utime('{file}')"),
    "change an attribute": does("os.setxattr('{file}', 'user.x', b'x')"),
    "lock a file that all read": does("import fcntl; fcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX)"),
    "watch a folder": calls(253) + calls(294, "0"),  # inotify
    # secrets
    "read its environment": gets("any('sk-' in value for value in os.environ.values())"),
    "read our environment": gets("'sk-' in open('/proc/{run}/environ').read()"),
    "read our memory": does("open('/proc/{run}/mem', 'rb')"),
    "list processes": gets("any(name.isdigit() for name in os.listdir('/proc'))"),
    "read the parent's memory": calls(310, "os.getppid()", "0", "0", "0", "0", "0"),  # process_vm_readv
    "take the parent's files": (
        _SYSCALL + "pid = call(434, os.getppid(), 0)\nif pid >= 0 and call(438, pid, 0, 0) >= 0: print('THROUGH')"
    ),
    "inherit our files": gets("any(map(os.path.exists, range(3, 64)))"),
    # network
    "connect by TCP": does("socket.create_connection(('127.0.0.1', {port}), 1)"),
    "send by UDP": does("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp}))"),
    "listen": does("socket.socket().bind(('127.0.0.1', 0))"),
    "connect to a unix socket": does("socket.socket(socket.AF_UNIX).connect('{path}')"),
    "connect to an abstract socket": does("socket.socket(socket.AF_UNIX).connect('\\0{name}')"),
    "make a pair of sockets": does("socket.socketpair()"),
    "talk to the kernel": does("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    # other processes
    "signal a process": does("os.kill({victim}, 0)"),
    "signal its parent": does("os.kill(os.getppid(), 0)"),
    "signal all processes": does("os.kill(-1, 0)"),
    "signal by a thread's number": calls(234, "os.getppid()", "os.getppid()", "0"),
    "signal by a process file": (
        _SYSCALL + "pid = call(434, os.getppid(), 0)\nif pid >= 0 and call(424, pid, 0, 0, 0) >= 0: print('THROUGH')"
    ),
    "signal through a pipe": does("import fcntl; fcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())"),
    "stop its parent": calls(101, "16", "os.getppid()", "0", "0"),  # ptrace(PTRACE_ATTACH)
    "be traced": calls(101, "0", "0", "0", "0"),
    "starve its parent": does("os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)"),
    "fork": does("os.fork() or os._exit(0)"),
    "fork without end": does("[os.fork() or (time.sleep(2), os._exit(0)) for _ in range(200)]"),
    "outlive its limit": does("os.fork() and os._exit(0); os.setsid()"),
    "start a shell": does("import subprocess; subprocess.run(['/bin/sh', '-c', 'true'], check=True)"),
    "become another program": does("os.execv('/bin/echo', ['echo', 'THROUGH'])"),
    "start a thread": does("import threading; threading.Thread(target=print).start()"),
    "leave its session": does("os.setpgid(0, 0)"),
    # the kernel
    "mount": calls(165, "b'none'", "b'/tmp'", "b'tmpfs'", "0", "0"),
    "unmount": calls(166, "b'/dev/shm'", "2"),
    "change the root": does("os.chroot('/')"),
    "change the folder": does("os.chdir('/usr')"),
    "make a user namespace": calls(272, str(0x10000000)),
    "make a mount namespace": calls(272, str(0x00020000)),
    "use io_uring": calls(425, "1", "ctypes.create_string_buffer(120)"),
    "use a keyring": calls(250, "0", "-3", "1"),
    "add a key": calls(248, "b'user'", "b'left'", "b'x'", "1", "-3"),
    "use BPF": calls(321, "0", "struct.pack('=IIIIIII', 1, 4, 4, 1, 0, 0, 0) + bytes(64)", "72"),
    "watch performance": calls(298, "struct.pack('=IIQQQQQ', 1, 112, 0, 0, 0, 0, 32) + bytes(64)", "0", "-1", "-1", "0"),
    "use userfaultfd": calls(323, "0"),
    "make shared memory": calls(29, "0", "4096", "0o1666"),
    "make a message queue": calls(68, "0", "0o1666"),
    "make a file in memory": does("os.memfd_create('left')"),
    "lock memory": calls(149, "ctypes.create_string_buffer(4096)", "4096"),
    "change the name of the machine": does("socket.sethostname(os.uname().nodename)"),
    "set the clock": does("time.clock_settime(time.CLOCK_REALTIME, time.time())"),
    "raise a limit": does(
        "import resource; most = 2**40; resource.setrlimit(resource.RLIMIT_AS, (most, most)); bytes(2**29)"
    ),
    "choose its processor": does("os.sched_setaffinity(0, os.sched_getaffinity(0))"),
    "call as a 32-bit program": (
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))\n"  # mov eax, 20 (getpid); int 0x80; ret
        "if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() > 0: print('THROUGH')"
    ),
    # what it leaves behind or uses up
    "use 2 GiB of memory": does("held = [bytearray(2**26) for _ in range(32)]"),
    "flood its output": "print('x' * 10**7, flush=True); print('THROUGH')",
    "run for ever": "import time\nwhile time.monotonic() < __import__('time').monotonic() + 1: pass",
    "sleep for ever": "import signal\nfor s in (1, 2, 3, 15): signal.signal(s, signal.SIG_IGN)\nimport time; time.sleep(99)",
    "close its output and go on": "import os, time\nos.close(1); os.close(2); os.close(0); time.sleep(99)",
    "change the next program": "import builtins, json\nbuiltins.print = json.dumps = None",
    "forge a result": (
        "import os\n"
        "for file in range(1, 64):\n"
        "    try: os.write(file, bytes(13) + b'\\x07\\0\\0\\0' + bytes(4) + b'THROUGH')\n"
        "    except OSError: pass\n"
        "os._exit(1)"
    ),
    "forge a result from its caller's memory": (
        "import sys, os\n"
        "frame = sys._getframe()\n"
        "while frame:\n"
        "    for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):\n"
        "        if isinstance(value, int) and 2 < value < 64:\n"
        "            try: os.write(value, b'S'); os._exit(1)\n"
        "            except OSError: pass\n"
        "    frame = frame.f_back\n"
        "os._exit(1)"
    ),
}  # fmt: skip
ENDS = {
    "flood its output": "killed",
    "run for ever": "timeout",
    "sleep for ever": "timeout",
    "close its output and go on": "timeout",
    "change the next program": "ok",
    "forge a result": "error",
    "forge a result from its caller's memory": "error",
}
"""How the sandbox ends attacks of which more than the output tells whether they got through."""


@contextlib.contextmanager
def surroundings() -> Iterator[dict[str, object]]:
    """What attacks are after."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as opened:
        folder = Path(name)
        folder.chmod(0o777)
        secret, path = folder / "secret", folder / "socket"
        secret.write_text(SECRET)
        tcp = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        for address in (str(path), f"\0{folder.name}"):
            unix = opened.enter_context(socket.socket(socket.AF_UNIX))
            unix.bind(address)
            unix.listen()
        victim = subprocess.Popen(["sleep", "600"])
        opened.callback(victim.wait)
        opened.callback(victim.kill)
        yield {
            "file": secret,
            "folder": folder,
            "run": os.getpid(),
            "victim": victim.pid,
            "port": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "path": path,
            "name": folder.name,
            "home": Path.home() if os.access(Path.home(), os.R_OK) else folder,
            "code": Path(__file__).resolve(),
        }
        assert victim.poll() is None, "the victim is dead"
        assert secret.read_text() == SECRET and sorted(p.name for p in folder.iterdir()) == ["secret", "socket"]


def source(attack: str, around: dict[str, object]) -> str:
    text = ATTACKS[attack]
    for name, value in around.items():
        text = text.replace("{" + name + "}", str(value))
    return text


async def in_the_sandbox(way: str) -> list[str]:
    """The attacks that get through the sandbox, with namespaces or without."""
    from slim_rl.sandbox import Sandbox, SandboxConfig
    from slim_rl.sandbox.local import namespaces_work

    assert namespaces_work() or way != "namespaces", "bubblewrap does not work here"
    through = []
    with surroundings() as around:
        async with Sandbox(SandboxConfig(workers=1), namespaces=way == "namespaces") as sandbox:
            for attack in ATTACKS:
                started = time.monotonic()
                run = await sandbox.run(source(attack, around), seconds=0.5)
                escaped = run.status != ENDS[attack] if attack in ENDS else "THROUGH" in run.output
                after = await sandbox.run("import json; print(json.dumps(1), end='')")
                unharmed = after.status == "ok" and after.output == "1"
                if escaped or not unharmed or run.status == "failed" or time.monotonic() - started > 10:
                    through.append(attack)
    return through


def in_a_subprocess() -> list[str]:
    """The attacks that get through `python -c`."""
    through = []
    for attack in ATTACKS:
        with contextlib.suppress(AssertionError, OSError), surroundings() as around:
            # A shell between us and the attack, so that an attack on its parent is none on us.
            inner = [sys.executable, "-S", "-c", source(attack, around)]
            run = subprocess.Popen(
                ["unshare", "--mount", "--ipc", "--uts", "sh", "-c", '"$@"; exit $?', "sh", *inner],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            try:
                if "THROUGH" not in run.communicate(timeout=3)[0]:
                    continue
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                run.communicate()
        through.append(attack)  # also if it did harm
    return through


if __name__ == "__main__":
    way = sys.argv[1]
    print(json.dumps(in_a_subprocess() if way == "subprocess" else asyncio.run(in_the_sandbox(way))))
