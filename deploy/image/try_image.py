#!/usr/bin/env python3
"""Tries an image of normd that buildah built, and prints what it found; exits 1 when anything is not as promised.

Usage: try_image.py ROOT CONTAINER BUILDAH [arguments of buildah...]   (from prove.sh, in a network namespace of its own)
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

SIZE_BAR_MB = 250
START_BAR_S = 2.0
COMPILERS = ("cc", "c++", "gcc", "g++", "cpp", "clang", "nvcc", "ld", "as", "cmake", "ninja", "make", "ccache", "python3")


class Report:
    def __init__(self):
        self.failed = 0

    def check(self, what, good, seen):
        print(f"{'ok    ' if good else 'FAILED'} {what}: {seen}")
        self.failed += not good


class Image:
    def __init__(self, container, buildah):
        self.container, self.buildah = container, buildah
        self.config = json.loads(self.call("inspect", "--type", "container", container))["Docker"]["config"]
        self.files = pathlib.Path(self.call("mount", container).strip())

    def call(self, *arguments):
        return subprocess.run([*self.buildah, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout

    def command(self, *command, volume=None, environment=()):
        options = ["--volume", volume] if volume else []
        options += [f"--env={entry}" for entry in environment]
        return [*self.buildah, "run", *options, self.container, "--", *command]

    def run(self, *command, **options):
        return subprocess.run(self.command(*command, **options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def start(self, *flags, volume=None):
        """The image's program with these flags, and what it wrote until it was ready or ended."""
        server = subprocess.Popen(self.command(*self.config["Entrypoint"], *flags, volume=volume), stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        log = []
        for line in server.stdout:
            log.append(line.rstrip())
            if line.startswith("normd ready"):
                break
        return server, log


def ended(process, line=0):
    """Exit code and a line of what was printed; of a command that ends at once, buildah loses some on a busy machine."""
    printed = process.stdout.strip().splitlines()
    return f"exit {process.returncode}{': ' + printed[line] if printed else ''}"


def descendants(pid):
    """Process ids below `pid`, itself first."""
    found = [pid]
    for parent in found:
        for task in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
            found.extend(int(child) for child in task.read_text().split())
    return found


def find_normd(pid):
    for candidate in descendants(pid):
        try:
            arguments = pathlib.Path(f"/proc/{candidate}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[0].endswith(b"/bin/normd"):
            return candidate
    return None


def age_s(pid):
    """How long a process has run: its start and now, both since the machine's own start, in ticks of 10 ms."""
    started = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]) / 100
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def megabytes(folder):
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink()) / 1e6


def metrics():
    """Samples at the metrics port without labels, and those with, by the text before the value."""
    with urllib.request.urlopen("http://127.0.0.1:8471/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("normd_"))}


def check_content(report, image, root):
    version = next(line.split()[2] for line in (root / "CMakeLists.txt").read_text().splitlines() if line.startswith("project(normd"))
    size = megabytes(image.files)
    report.check("size of the files, MB", size < SIZE_BAR_MB, f"{size:.1f} (bar {SIZE_BAR_MB})")
    programs = {name: (image.files / "opt/normd/bin" / name).stat().st_size / 1e6 for name in ("normd", "normctl")}
    report.check("programs, MB", True, ", ".join(f"{name} {mb:.1f}" for name, mb in programs.items()))

    folders = [image.files / folder for folder in ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/cuda/bin", "opt/normd/bin")]
    found = [name for name in COMPILERS if any((folder / name).exists() for folder in folders)]
    report.check("compilers and the like", not found, found or "none")
    drivers = [str(file.relative_to(image.files)) for pattern in ("libcuda.so*", "libnvidia*", "libcudart*", "libnvcc*")
               for file in image.files.rglob(pattern)]
    report.check("parts of the driver, a shared CUDA runtime", not drivers, drivers or "none")

    labels = image.config["Labels"]
    report.check("label version", labels["org.opencontainers.image.version"] == version, labels["org.opencontainers.image.version"])
    for name in ("title", "description", "revision", "licenses", "base.name"):
        value = labels.get(f"org.opencontainers.image.{name}", "")
        report.check(f"label {name}", value not in ("", "unknown"), value)
    environment = dict(entry.split("=", 1) for entry in image.config["Env"])
    report.check("NVIDIA_VISIBLE_DEVICES", environment["NVIDIA_VISIBLE_DEVICES"] == "all", environment["NVIDIA_VISIBLE_DEVICES"])
    report.check("NVIDIA_DRIVER_CAPABILITIES", environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility",
                 environment["NVIDIA_DRIVER_CAPABILITIES"])
    report.check("NVIDIA_REQUIRE_CUDA", environment["NVIDIA_REQUIRE_CUDA"] == "cuda>=13.0", environment["NVIDIA_REQUIRE_CUDA"])
    report.check("stops by", image.config["StopSignal"] == "SIGTERM", image.config["StopSignal"])

    components = json.loads((image.files / "opt/normd/sbom.cdx.json").read_text())["components"]
    listed = {component["name"]: component["version"] for component in components}
    query = subprocess.run(["dpkg-query", f"--root={image.files}", "-W", "-f=${Package} ${Version}\\n"], check=True,
                           stdout=subprocess.PIPE, text=True)
    installed = dict(line.split() for line in query.stdout.splitlines())
    missing = [name for name, found in installed.items() if listed.get(name) != found]
    report.check("Debian packages that the SBOM misses", not missing, missing or f"none of {len(installed)}")
    report.check("what the SBOM has besides", True, ", ".join(sorted(set(listed) - set(installed))))


def check_user(report, image):
    report.check("user", image.config["User"] == "8470:8470", image.config["User"])
    ran = image.run("sh", "-c", 'test "$(id -u):$(id -g)" = 8470:8470')
    report.check("a command runs as that user", ran.returncode == 0, ended(ran))
    for folder in ("/opt/normd", "/opt/normd/bin", "/etc/normd"):
        written = image.run("sh", "-c", f"! touch {folder}/x 2>/dev/null")
        report.check(f"it cannot write to {folder}", written.returncode == 0, ended(written))


def check_service(report, image, root):
    health = image.config["Healthcheck"]["Test"][1:]
    before = image.run(*health)
    report.check("health check without a server", before.returncode == 3, ended(before))

    server, log = image.start(*image.config["Cmd"])
    pid = find_normd(server.pid)
    if pid is None:
        report.check("server", False, "\n".join(log))
        server.wait()
        return
    took = age_s(pid)
    report.check("ready line", "grpc=0.0.0.0:8470" in log[-1], log[-1])
    report.check(f"process start to ready, s (bar {START_BAR_S:.0f})", took < START_BAR_S, f"{took:.2f}")
    why = [line for line in log if "no usable GPU: the CPU backend serves" in line]
    report.check("says that there is no GPU", len(why) == 1, why)
    owner = next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:"))
    report.check("user of the server", owner.split()[1:] == ["8470"] * 4, owner)

    after = image.run(*health)
    report.check("health check", after.returncode == 0, ended(after))
    verified = image.run("normctl", "verify", "/data/manifest.json", volume=f"{root}/tests/data:/data:ro")
    report.check("real inputs through the image's client", verified.returncode == 0, ended(verified, line=-1))
    load = subprocess.Popen(image.command("normctl", "bench", "--rate", "200", "--in-flight", "4", "--warm-up", "0.1", "--duration", "1"),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed, _ = load.communicate()
    report.check("load through the image's client", load.returncode == 0, " | ".join(printed.split("\n")[:2]))
    samples = metrics()
    report.check("samples at the metrics port", len(samples) > 50, len(samples))

    client = subprocess.Popen(image.command("normctl", "bench", "--shape", "4096x4096", "--in-flight", "4", "--warm-up", "0",
                                            "--duration", "3"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    under_way = 0
    while under_way == 0 and client.poll() is None:
        under_way = metrics().get("normd_in_flight_requests", 0)
    report.check("calls under way when SIGTERM comes", under_way > 0, f"{under_way:.0f}")
    os.kill(pid, signal.SIGTERM)
    rest = [line.rstrip() for line in server.stdout]
    code = server.wait()
    client.communicate()
    report.check("exit code after SIGTERM", code == 0, code)
    report.check("drained", any('"drained"' in line for line in rest), rest[-1] if rest else "no log")


def check_tls(report, image):
    """With a certificate: what the health check finds in its environment is enough for it."""
    health = image.config["Healthcheck"]["Test"][1:]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=normd.example",
                        "-addext", "subjectAltName=DNS:normd.example", "-keyout", f"{folder}/tls.key", "-out", f"{folder}/tls.crt"],
                       check=True, stderr=subprocess.DEVNULL)
        for file in pathlib.Path(folder).iterdir():
            file.chmod(0o444)
        pathlib.Path(folder).chmod(0o755)
        refused, log = image.start()
        report.check("refuses to start without TLS and without --insecure", refused.wait() == 2, log[0])
        volume = f"{folder}:/tls:ro"
        server, log = image.start("--tls_cert=/tls/tls.crt", "--tls_key=/tls/tls.key", volume=volume)
        environment = ["NORMD_TLS_CA=/tls/tls.crt", "NORMD_TLS_NAME=normd.example"]
        found = image.run(*health, volume=volume, environment=environment)
        report.check("health check over TLS", found.returncode == 0, ended(found))
        plain = image.run(*health)
        report.check("the same in plaintext", plain.returncode == 3, ended(plain))
        os.kill(find_normd(server.pid), signal.SIGTERM)
        server.communicate()


def main():
    root, container, buildah = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    report = Report()
    image = Image(container, buildah)
    check_content(report, image, root)
    check_user(report, image)
    check_service(report, image, root)
    check_tls(report, image)
    print(f"try_image.py: {'everything as promised' if report.failed == 0 else f'{report.failed} promises are not kept'}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
