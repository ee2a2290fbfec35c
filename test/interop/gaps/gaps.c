/*
 * gaps.c: what librspreload.so of rdma-core 44 lets through to the kernel.
 *
 * That library turns socket calls of unmodified programs into calls of rsockets, but knows
 * fewer calls than programs use today: a socket made with SOCK_CLOEXEC or SOCK_NONBLOCK silently becomes a TCP socket, accept4
 * fails (the descriptor it is given is a placeholder), and fcntl64, ioctl(FIONBIO),
 * sendfile64, __poll_chk and epoll act on the placeholder; SO_TYPE is not answered. This library, preloaded before it, puts
 * each of them in terms of calls that librspreload has:
 *
 *     LD_PRELOAD="gaps.so /usr/lib/<arch>/rsocket/librspreload.so" redis-server ...
 *
 * epoll is level-triggered, without nesting, and made of poll.
 *
 * poll itself has a fault there: rpoll counts the threads that wait in it, and a wait that
 * times out is never taken off. The next event then asks all of them to leave, waits for the one that is gone, and
 * every rpoll of the process spins from there on and does not time out any more. So no wait
 * with a timeout of librspreload's is used: it is asked, without waiting, every millisecond.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The next definition of a function in the order of loading, looked up once. */
#define NEXT(name)                                        \
	({                                                \
		static __typeof__(&name) next;            \
		if (!next)                                \
			next = dlsym(RTLD_NEXT, #name);   \
		next;                                     \
	})

static int set_flags(int fd, int flags)
{
	/* Close-on-exec is not for rsockets: no other process can use one. */
	if (flags & SOCK_NONBLOCK)
		return fcntl(fd, F_SETFL, O_NONBLOCK);
	return 0;
}

static int streams(int domain, int type)
{
	return (domain == AF_INET || domain == AF_INET6) &&
	       (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM;
}

int socket(int domain, int type, int protocol)
{
	int flags = type & (SOCK_NONBLOCK | SOCK_CLOEXEC), fd;

	if (!flags || !streams(domain, type))
		return NEXT(socket)(domain, type, protocol);
	fd = NEXT(socket)(domain, SOCK_STREAM, protocol);
	if (fd >= 0 && set_flags(fd, flags)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* The kernel knows the placeholder of an rsocket as no socket; librspreload knows what stands behind it. */
static int is_rsocket(int fd)
{
	int value;
	socklen_t len = sizeof(value);

	if (!syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_REUSEADDR, &value, &len))
		return 0;
	len = sizeof(value);
	return errno == ENOTSOCK && !NEXT(getsockopt)(fd, SOL_SOCKET, SO_REUSEADDR, &value, &len);
}

int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	int conn;

	if (!is_rsocket(fd))
		return NEXT(accept4)(fd, addr, len, flags);
	conn = accept(fd, addr, len);
	if (conn >= 0 && set_flags(conn, flags)) {
		close(conn);
		return -1;
	}
	return conn;
}

/* What OpenSSL asks before it listens, and Python before it speaks TLS. */
int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	if (level != SOL_SOCKET || name != SO_TYPE || !is_rsocket(fd) || *len < sizeof(int))
		return NEXT(getsockopt)(fd, level, name, value, len);
	*(int *)value = SOCK_STREAM;
	*len = sizeof(int);
	return 0;
}

int fcntl64(int fd, int cmd, ...)
{
	va_list args;
	void *arg;

	va_start(args, cmd);
	arg = va_arg(args, void *);
	va_end(args);
	return fcntl(fd, cmd, arg);
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;
	int flags;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (request != FIONBIO)
		return NEXT(ioctl)(fd, request, arg);
	flags = fcntl(fd, F_GETFL);
	if (flags < 0)
		return -1;
	return fcntl(fd, F_SETFL, *(int *)arg ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

ssize_t sendfile64(int out, int in, off64_t *offset, size_t count)
{
	if (!is_rsocket(out))
		return NEXT(sendfile64)(out, in, offset, count);
	errno = ENOSYS; /* callers fall back to read and write */
	return -1;
}

static long long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	static const struct timespec pause = {0, 1000000};
	long long end;
	nfds_t i;
	int ready;

	for (i = 0; i < n && !is_rsocket(fds[i].fd); i++)
		;
	if (i == n || !timeout)
		return NEXT(poll)(fds, n, timeout);
	end = now_ms() + timeout;
	while (!(ready = NEXT(poll)(fds, n, 0))) {
		if (timeout > 0 && now_ms() >= end)
			return 0;
		if (nanosleep(&pause, NULL))
			return -1; /* EINTR */
	}
	return ready;
}

int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size)
{
	if (size / sizeof(*fds) < n)
		abort();
	return poll(fds, n, timeout);
}

/* An epoll instance is a list of descriptors behind an eventfd that stands for it. */
struct watch {
	int fd;
	struct epoll_event event;
};

struct instance {
	int epfd;
	int n, room;
	struct watch *watches;
	struct instance *next;
};

static struct instance *instances;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int epoll_create1(int flags)
{
	struct instance *in = calloc(1, sizeof(*in));

	if (!in)
		return -1;
	in->epfd = eventfd(0, flags & EPOLL_CLOEXEC ? EFD_CLOEXEC : 0);
	if (in->epfd < 0) {
		free(in);
		return -1;
	}
	pthread_mutex_lock(&lock);
	in->next = instances;
	instances = in;
	pthread_mutex_unlock(&lock);
	return in->epfd;
}

int epoll_create(int size)
{
	(void)size;
	return epoll_create1(0);
}

static struct instance *find(int epfd)
{
	struct instance *in;

	for (in = instances; in && in->epfd != epfd; in = in->next)
		;
	return in;
}

static int change(struct instance *in, int op, int fd, struct epoll_event *event)
{
	struct watch *w;
	int i;

	for (i = 0; i < in->n && in->watches[i].fd != fd; i++)
		;
	if (op == EPOLL_CTL_ADD) {
		if (i < in->n)
			return EEXIST;
		if (in->n == in->room) {
			w = realloc(in->watches, (2 * in->room + 8) * sizeof(*w));
			if (!w)
				return ENOMEM;
			in->watches = w;
			in->room = 2 * in->room + 8;
		}
		in->watches[in->n++] = (struct watch){fd, *event};
		return 0;
	}
	if (i == in->n)
		return ENOENT;
	if (op == EPOLL_CTL_MOD)
		in->watches[i].event = *event;
	else
		in->watches[i] = in->watches[--in->n];
	return 0;
}

int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	struct instance *in;
	int err;

	if (op != EPOLL_CTL_DEL && event->events & (EPOLLET | EPOLLONESHOT)) {
		errno = EINVAL;
		return -1;
	}
	pthread_mutex_lock(&lock);
	in = find(epfd);
	err = in ? change(in, op, fd, event) : EBADF;
	pthread_mutex_unlock(&lock);
	errno = err;
	return err ? -1 : 0;
}

/* The bits of poll and epoll are the same. */
int epoll_wait(int epfd, struct epoll_event *events, int max, int timeout)
{
	struct pollfd *fds = NULL;
	struct instance *in;
	int i, n = 0, ready, out = 0;

	pthread_mutex_lock(&lock);
	in = find(epfd);
	if (in && (fds = malloc((in->n + 1) * sizeof(*fds)))) {
		n = in->n;
		for (i = 0; i < n; i++)
			fds[i] = (struct pollfd){in->watches[i].fd, (short)in->watches[i].event.events, 0};
	}
	pthread_mutex_unlock(&lock);
	if (!fds) {
		errno = in ? ENOMEM : EBADF;
		return -1;
	}
	ready = poll(fds, n, timeout);
	pthread_mutex_lock(&lock);
	for (i = 0; ready > 0 && i < in->n && out < max; i++) {
		struct watch *w = &in->watches[i];
		int j;

		for (j = 0; j < n && fds[j].fd != w->fd; j++)
			;
		if (j == n || !fds[j].revents || fds[j].revents & POLLNVAL)
			continue;
		events[out].events = (unsigned short)fds[j].revents;
		events[out++].data = w->event.data;
	}
	pthread_mutex_unlock(&lock);
	free(fds);
	return ready < 0 ? -1 : out;
}

int epoll_pwait(int epfd, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	(void)mask; /* the programs run here pass none that matters */
	return epoll_wait(epfd, events, max, timeout);
}
