"""Freed memory is used by other threads, and goes back to the system."""

import subprocess
import sys

SCRIPT = """
import threading
from slim_rl.runtime.heap import return_freed_memory, share_freed_memory

def megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 // 1_000_000

def blocks():
    return [bytearray(50_000) for _ in range(4000)]  # 200 MB, of a size for which malloc asks no pages of their own

def fill_and_free():
    made = blocks()
    kept.append(made.pop())  # so that what is free is no end of the heap

share_freed_memory()
kept, start = [], megabytes()
thread = threading.Thread(target=fill_and_free)
thread.start()
thread.join()
own = blocks()
print(megabytes() - start)
kept.append(own.pop())
del own
print(megabytes() - start)
return_freed_memory()
print(megabytes() - start)
"""


def test_threads_share_what_is_free_and_the_system_gets_it_back():
    output = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    filled, freed, returned = map(int, output.split())
    assert 190 < filled < 300
    assert freed > 150
    assert returned < 50
