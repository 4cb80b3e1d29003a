/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reads ROUNDS WAIT_NS
 *
 * A thread that reads from a pipe, an eventfd, an inotify and two sockets in turn: the same
 * system call waits in five places of the kernel, two of them equally deep. Every read
 * waits: another process writes WAIT_NS after it sees the thread sleep in it. Its pid is
 * printed first, and a line on stdin begins the rounds. Then come the kernel's functions
 * that a read of each kind sleeps in, as its /proc/PID/stack has them, and in the end how
 * many reads of each kind there were.
 */
#include "workload.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

enum {
	PIPE,
	EVENTFD,
	INOTIFY,
	UNIX_SOCKET,
	TCP_SOCKET,
	KINDS
};

/* Some after their like, some after another one. */
static const int order[] = {PIPE,	 PIPE,	      EVENTFD,	  INOTIFY, INOTIFY,
			    UNIX_SOCKET, UNIX_SOCKET, TCP_SOCKET, EVENTFD, PIPE,
			    TCP_SOCKET,	 TCP_SOCKET,  UNIX_SOCKET};
static const char *const names[KINDS] = {"pipe", "eventfd", "inotify", "unix", "tcp"};
static struct {
	int read, write;
} ends[KINDS];
static _Atomic uint64_t *begun; /* reads */

/* An inotify tells of every write to a file. */
static void open_inotify(void)
{
	char path[] = "/tmp/reads-XXXXXX";
	int file = mkstemp(path);

	ends[INOTIFY].read = inotify_init();
	ends[INOTIFY].write = file;
	if (inotify_add_watch(ends[INOTIFY].read, path, IN_MODIFY) < 0)
		fail("no watch");
	unlink(path);
}

static void open_tcp(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t size = sizeof(address);
	int server = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(server, (void *)&address, size) || listen(server, 1) ||
	    getsockname(server, (void *)&address, &size))
		fail("no server");
	ends[TCP_SOCKET].write = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(ends[TCP_SOCKET].write, (void *)&address, size))
		fail("no connection");
	setsockopt(ends[TCP_SOCKET].write, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	ends[TCP_SOCKET].read = accept(server, NULL, NULL);
}

static size_t read_text(int file, char *text, size_t room)
{
	ssize_t size = pread(file, text, room - 1, 0);

	if (size < 0)
		fail("nothing in /proc");
	text[size] = 0;
	return size;
}

/*
 * Whether the reader sleeps, from /proc/PID/stat: "PID (NAME) STATE ...". It says so shortly
 * before it leaves its CPU, and has no stack to show until then.
 */
static bool sleeps(int stat, int stack)
{
	char text[64];
	const char *end;

	read_text(stat, text, sizeof(text));
	end = strrchr(text, ')');
	return end && !strncmp(end, ") S", 3) && read_text(stack, text, sizeof(text));
}

/* Lines of /proc/PID/stack: "[<0>] FUNCTION+0xOFFSET/0xSIZE". */
static void tell_stack(int stack, const char *name)
{
	char text[4096], *line = text, *end;
	const char *comma = "";

	read_text(stack, text, sizeof(text));
	printf("{\"from\": \"%s\", \"functions\": [", name);
	while ((line = strchr(line, ' ')) && (end = strchr(line, '+'))) {
		printf("%s\"%.*s\"", comma, (int)(end - line - 1), line + 1);
		comma = ", ";
		line = end;
	}
	printf("]}\n");
}

static void write_all(pid_t reader, uint64_t rounds, uint64_t wait_ns)
{
	uint64_t reads = 0, one = 1, start_ns;
	bool is_told[KINDS] = {};
	char path[64];
	int stat, stack;

	snprintf(path, sizeof(path), "/proc/%d/stat", reader);
	stat = open(path, O_RDONLY);
	snprintf(path, sizeof(path), "/proc/%d/stack", reader);
	stack = open(path, O_RDONLY);
	for (uint64_t round = 0; round < rounds; round++) {
		for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
			reads++;
			while (atomic_load(begun) != reads || !sleeps(stat, stack))
				;
			if (!is_told[order[i]])
				tell_stack(stack, names[order[i]]);
			is_told[order[i]] = true;
			start_ns = clock_ns(CLOCK_MONOTONIC);
			while (clock_ns(CLOCK_MONOTONIC) - start_ns < wait_ns)
				;
			if (write(ends[order[i]].write, &one, sizeof(one)) != sizeof(one))
				fail("write");
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t rounds, wait_ns, reads = 0, counts[KINDS] = {};
	struct inotify_event event; /* as large as anything that is read */
	int pair[2];
	pid_t writer;

	if (argc != 3)
		fail("reads ROUNDS WAIT_NS");
	rounds = number(argv[1]);
	wait_ns = number(argv[2]);
	if (pipe(pair))
		fail("no pipe");
	ends[PIPE].read = pair[0];
	ends[PIPE].write = pair[1];
	ends[EVENTFD].read = ends[EVENTFD].write = eventfd(0, 0);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("no pair");
	ends[UNIX_SOCKET].read = pair[0];
	ends[UNIX_SOCKET].write = pair[1];
	open_inotify();
	open_tcp();
	begun = mmap(NULL, sizeof(*begun), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	if (begun == MAP_FAILED)
		fail("no memory");
	setvbuf(stdout, NULL, _IOLBF, 0);
	writer = fork();
	if (!writer) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		write_all(getppid(), rounds, wait_ns);
		_exit(0);
	}
	printf("{\"pid\": %d, \"system_call\": %d}\n", getpid(), SYS_read);
	if (getchar() == EOF)
		fail("no start");
	for (uint64_t round = 0; round < rounds; round++) {
		for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
			atomic_store(begun, ++reads);
			if (read(ends[order[i]].read, &event, sizeof(event)) <= 0)
				fail("read");
			counts[order[i]]++;
		}
	}
	waitpid(writer, NULL, 0);
	for (int kind = 0; kind < KINDS; kind++)
		printf("{\"from\": \"%s\", \"reads\": %" PRIu64 "}\n", names[kind], counts[kind]);
	return 0;
}
