#include "peer.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

void say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

void try_(int ret, const char *call)
{
	if (ret)
		die("%s: %s", call, rpma_err_2str(ret));
}

void must_fail_(int code, int ret, const char *call)
{
	if (ret != code)
		die("%s: %s, but %s was to come", call, rpma_err_2str(ret), rpma_err_2str(code));
}

struct rpma_conn_cfg *config(struct side *s)
{
	if (!s->cfg)
		try(rpma_conn_cfg_new(&s->cfg));
	return s->cfg;
}

void mem_new(struct side *s, struct mem *m, size_t n, int usage)
{
	m->n = n;
	m->p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
	if (m->p == MAP_FAILED)
		die("mmap");
	try(rpma_mr_reg(s->peer, m->p, n, usage, &m->mr));
}

void mem_free(struct mem *m)
{
	try(rpma_mr_dereg(&m->mr));
	munmap(m->p, m->n);
}

static char pattern(size_t i, int seed) { return (char)(i * 7 + i / 256 * 13 + seed); }

void fill(char *p, size_t n, int seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = pattern(i, seed);
}

void expect_pattern(const char *p, size_t n, int seed)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != pattern(i, seed))
			die("byte %zu of %zu is %#x, not %#x", i, n, (uint8_t)p[i], (uint8_t)pattern(i, seed));
}

void listen_on(struct side *s)
{
	try(rpma_ep_listen(s->peer, s->addr, s->port, &s->ep));
	say("listening");
}

void next_request(struct side *s) { try(rpma_ep_next_conn_req(s->ep, s->cfg, &s->req)); }

void accept_with(struct side *s, const void *pdata, uint8_t n)
{
	struct rpma_conn_private_data d = {(void *)pdata, n};

	try(rpma_conn_req_connect(&s->req, n ? &d : NULL, &s->conn));
	expect_event(s, RPMA_CONN_ESTABLISHED);
}

void accept_offering(struct side *s, const struct mem *m, bool direct)
{
	char offer[OFFER];
	struct rpma_peer_cfg *pcfg;
	size_t n;

	try(rpma_mr_get_descriptor_size(m->mr, &n));
	check(n == DESC);
	try(rpma_mr_get_descriptor(m->mr, offer));
	try(rpma_peer_cfg_new(&pcfg));
	try(rpma_peer_cfg_set_direct_write_to_pmem(pcfg, direct));
	try(rpma_peer_cfg_get_descriptor_size(pcfg, &n));
	check(n == 1);
	try(rpma_peer_cfg_get_descriptor(pcfg, offer + DESC));
	try(rpma_peer_cfg_delete(&pcfg));
	accept_with(s, offer, sizeof offer);
}

void request(struct side *s) { try(rpma_conn_req_new(s->peer, s->addr, s->port, s->cfg, &s->req)); }

void connect_with(struct side *s, const void *pdata, uint8_t n)
{
	struct rpma_conn_private_data d = {(void *)pdata, n};

	if (!s->req)
		request(s);
	try(rpma_conn_req_connect(&s->req, n ? &d : NULL, &s->conn));
	expect_event(s, RPMA_CONN_ESTABLISHED);
}

void take_offer(struct side *s)
{
	struct rpma_conn_private_data d;

	try(rpma_conn_get_private_data(s->conn, &d));
	check(d.len >= OFFER);
	try(rpma_mr_remote_from_descriptor(d.ptr, DESC, &s->remote));
}

void expect_event(struct side *s, enum rpma_conn_event want)
{
	enum rpma_conn_event got;

	try(rpma_conn_next_event(s->conn, &got));
	if (got != want)
		die("event %s, but %s was to come", rpma_utils_conn_event_2str(got), rpma_utils_conn_event_2str(want));
}

/* end disconnects, as the first or the second. */
void end(struct side *s, bool first)
{
	if (!first)
		expect_event(s, RPMA_CONN_CLOSED);
	try(rpma_conn_disconnect(s->conn));
	if (first)
		expect_event(s, RPMA_CONN_CLOSED);
}

void shut(struct side *s)
{
	if (s->remote)
		try(rpma_mr_remote_delete(&s->remote));
	if (s->conn)
		try(rpma_conn_delete(&s->conn));
	if (s->cfg)
		try(rpma_conn_cfg_delete(&s->cfg));
	if (s->ep)
		try(rpma_ep_shutdown(&s->ep));
}

struct rpma_cq *cq_of(struct side *s)
{
	struct rpma_cq *cq;

	try(rpma_conn_get_cq(s->conn, &cq));
	return cq;
}

struct ibv_wc next_wc(struct rpma_cq *cq)
{
	struct ibv_wc wc;
	int ret;

	while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		try(rpma_cq_wait(cq));
	try(ret);
	return wc;
}

struct ibv_wc expect_wc(struct rpma_cq *cq, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next_wc(cq);

	if (wc.wr_id != id || wc.status != status)
		die("completion %lu: %s, but %lu: %s was to come", wc.wr_id, ibv_wc_status_str(wc.status), id, ibv_wc_status_str(status));
	return wc;
}

void expect_none(struct rpma_cq *cq)
{
	struct ibv_wc wc;

	must_fail(RPMA_E_NO_COMPLETION, rpma_cq_get_wc(cq, 1, &wc, NULL));
}

int main(int argc, char **argv)
{
	const struct scenario *all[] = {scenarios_onesided, scenarios_messages, scenarios_cm};
	struct side s = {0};
	struct ibv_context *device;
	bool serve;

	if (argc != 5)
		die("usage: %s SCENARIO serve|dial ADDRESS PORT", argv[0]);
	serve = !strcmp(argv[2], "serve");
	s.addr = argv[3];
	s.port = argv[4];
	alarm(150); /* a peer that has gone shows as nothing at all */
	try(rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_LEVEL_WARNING));
	try(rpma_utils_get_ibv_context(s.addr, serve ? RPMA_UTIL_IBV_CONTEXT_LOCAL : RPMA_UTIL_IBV_CONTEXT_REMOTE, &device));
	try(rpma_peer_new(device, &s.peer));
	for (int i = 0; i < 3; i++)
		for (const struct scenario *c = all[i]; c->name; c++)
			if (!strcmp(c->name, argv[1])) {
				(serve ? c->serve : c->dial)(&s);
				shut(&s);
				try(rpma_peer_delete(&s.peer));
				say("done");
				return 0;
			}
	die("no scenario %s", argv[1]);
}
