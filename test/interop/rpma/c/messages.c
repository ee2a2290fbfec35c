/* SEND and RECV: on the connection's queue, on one of its own, on a shared channel, on shared receive queues. */
#include "peer.h"

#include <arpa/inet.h>
#include <string.h>

#define SLOT 65536

static const struct {
	size_t len;
	bool with;
	uint32_t imm;
} messages[] = {{1, false, 0}, {1024, true, 0x01020304}, {1025, false, 0}, {0, false, 0}, {0, true, 0xffffffff}, {SLOT, true, 9}, {4097, false, 0}};

#define MESSAGES (sizeof messages / sizeof *messages)

static void send_one(struct side *s, struct mem *m, unsigned i)
{
	size_t n = messages[i].len;
	size_t off = n ? i % 2 * SLOT : 0; /* the one before may still be on its way */
	struct rpma_mr_local *mr = n ? m->mr : NULL;

	fill(m->p + off, n, 10 + i);
	if (messages[i].with)
		try(rpma_send_with_imm(s->conn, mr, off, n, RPMA_F_COMPLETION_ALWAYS, messages[i].imm, ID(100 + i)));
	else
		try(rpma_send(s->conn, mr, off, n, RPMA_F_COMPLETION_ALWAYS, ID(100 + i)));
}

static void expect_one(struct ibv_wc wc, const char *p, unsigned i)
{
	check(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	check(wc.byte_len == messages[i].len);
	check(!!(wc.wc_flags & IBV_WC_WITH_IMM) == messages[i].with);
	if (messages[i].with)
		check(ntohl(wc.imm_data) == messages[i].imm);
	expect_pattern(p, messages[i].len, 10 + i);
}

/* settle makes sure that the server knows that its last message was received: a connection that ends is no acknowledgement. */
static void settle(struct side *s)
{
	try(rpma_write(s->conn, NULL, 0, NULL, 0, 0, RPMA_F_COMPLETION_ALWAYS, ID(999)));
	expect_wc(cq_of(s), 999, IBV_WC_SUCCESS);
}

/* send: each message comes back; sends and receives complete in one queue, and the answer to a message may do so before its sending */

static void echo(struct side *s, struct mem *in, struct mem *out, bool server)
{
	unsigned sent = 0, received = 0;

	if (!server)
		send_one(s, out, 0);
	while (sent < MESSAGES || received < MESSAGES) {
		struct ibv_wc wc = next_wc(cq_of(s));

		if (wc.wr_id == 100 + sent) {
			check(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND);
			sent++;
			continue;
		}
		check(wc.wr_id == 1 + received);
		expect_one(wc, in->p + received % 2 * SLOT, received);
		if (received + 2 < MESSAGES)
			try(rpma_recv(s->conn, in->mr, received % 2 * SLOT, SLOT, ID(3 + received)));
		if (server)
			send_one(s, out, received);
		received++;
		if (!server && received < MESSAGES)
			send_one(s, out, received);
	}
	say("%u messages", (unsigned)MESSAGES);
}

static void send_mem(struct side *s, struct mem *in, struct mem *out)
{
	mem_new(s, in, 2 * SLOT, RPMA_MR_USAGE_RECV);
	mem_new(s, out, 2 * SLOT, RPMA_MR_USAGE_SEND);
}

static void first_receives(struct side *s, struct mem *in)
{
	try(rpma_conn_req_recv(s->req, in->mr, 0, SLOT, ID(1)));
	try(rpma_conn_req_recv(s->req, in->mr, SLOT, SLOT, ID(2)));
}

static void serve_send(struct side *s)
{
	struct mem in, out;

	send_mem(s, &in, &out);
	listen_on(s);
	next_request(s);
	first_receives(s, &in);
	accept_with(s, NULL, 0);
	echo(s, &in, &out, true);
	end(s, false);
	mem_free(&in);
	mem_free(&out);
}

static void dial_send(struct side *s)
{
	struct mem in, out;

	send_mem(s, &in, &out);
	request(s);
	first_receives(s, &in);
	connect_with(s, NULL, 0);
	echo(s, &in, &out, false);
	settle(s);
	end(s, true);
	mem_free(&in);
	mem_free(&out);
}

/* rcq: receives complete in a queue of their own */

static void pong(struct side *s, struct mem *in, struct mem *out, bool server)
{
	struct rpma_cq *rcq;
	struct ibv_wc wc;

	try(rpma_conn_get_rcq(s->conn, &rcq));
	check(rcq && rcq != cq_of(s));
	for (unsigned i = 0; i < MESSAGES; i++) {
		if (!server)
			send_one(s, out, i);
		wc = expect_wc(rcq, 1 + i, IBV_WC_SUCCESS);
		expect_one(wc, in->p + i % 2 * SLOT, i);
		if (i + 2 < MESSAGES)
			try(rpma_recv(s->conn, in->mr, i % 2 * SLOT, SLOT, ID(3 + i)));
		if (server)
			send_one(s, out, i);
		check(expect_wc(cq_of(s), 100 + i, IBV_WC_SUCCESS).opcode == IBV_WC_SEND);
	}
	say("%u messages", (unsigned)MESSAGES);
}

static void serve_rcq(struct side *s)
{
	struct mem in, out;

	send_mem(s, &in, &out);
	try(rpma_conn_cfg_set_rcq_size(config(s), 10));
	listen_on(s);
	next_request(s);
	first_receives(s, &in);
	accept_with(s, NULL, 0);
	pong(s, &in, &out, true);
	end(s, false);
	mem_free(&in);
	mem_free(&out);
}

static void dial_rcq(struct side *s)
{
	struct mem in, out;

	send_mem(s, &in, &out);
	try(rpma_conn_cfg_set_rcq_size(config(s), 10));
	request(s);
	first_receives(s, &in);
	connect_with(s, NULL, 0);
	pong(s, &in, &out, false);
	settle(s);
	end(s, true);
	mem_free(&in);
	mem_free(&out);
}

/* shared: two queues, waited for together */

static void await(struct side *s, struct mem *in, struct mem *out, bool server)
{
	struct rpma_cq *cq, *rcq;
	struct ibv_wc wc;
	bool is_rcq;
	unsigned sent = 0, received = 0;
	int ret;

	try(rpma_conn_get_rcq(s->conn, &rcq));
	must_fail(RPMA_E_SHARED_CHANNEL, rpma_cq_wait(cq_of(s)));
	if (!server)
		send_one(s, out, 0);
	while (sent < MESSAGES || received < MESSAGES) {
		try(rpma_conn_wait(s->conn, 0, &cq, &is_rcq));
		check(is_rcq == (cq == rcq));
		while (!(ret = rpma_cq_get_wc(cq, 1, &wc, NULL))) {
			check(wc.status == IBV_WC_SUCCESS);
			if (!is_rcq) {
				check(wc.opcode == IBV_WC_SEND && wc.wr_id == 100 + sent);
				sent++;
			} else {
				check(wc.wr_id == 1 + received);
				expect_one(wc, in->p + received % 2 * SLOT, received);
				if (received + 2 < MESSAGES)
					try(rpma_recv(s->conn, in->mr, received % 2 * SLOT, SLOT, ID(3 + received)));
				if (server)
					send_one(s, out, received);
				received++;
			}
			if (!server && is_rcq && received < MESSAGES)
				send_one(s, out, received);
		}
		check(ret == RPMA_E_NO_COMPLETION);
	}
	if (!server) { /* as settle, on a shared channel */
		try(rpma_write(s->conn, NULL, 0, NULL, 0, 0, RPMA_F_COMPLETION_ALWAYS, ID(999)));
		while ((ret = rpma_cq_get_wc(cq_of(s), 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
			try(rpma_conn_wait(s->conn, 0, &cq, &is_rcq));
		try(ret);
		check(wc.wr_id == 999 && wc.status == IBV_WC_SUCCESS);
	}
	say("%u messages", (unsigned)MESSAGES);
}

static void serve_shared(struct side *s)
{
	struct mem in, out;

	send_mem(s, &in, &out);
	try(rpma_conn_cfg_set_rcq_size(config(s), 10));
	try(rpma_conn_cfg_set_compl_channel(config(s), true));
	listen_on(s);
	next_request(s);
	first_receives(s, &in);
	accept_with(s, NULL, 0);
	await(s, &in, &out, true);
	end(s, false);
	mem_free(&in);
	mem_free(&out);
}

static void dial_shared(struct side *s)
{
	struct mem in, out;

	send_mem(s, &in, &out);
	try(rpma_conn_cfg_set_rcq_size(config(s), 10));
	try(rpma_conn_cfg_set_compl_channel(config(s), true));
	request(s);
	first_receives(s, &in);
	connect_with(s, NULL, 0);
	await(s, &in, &out, false);
	end(s, true);
	mem_free(&in);
	mem_free(&out);
}

/* srq: one receive queue for two connections, told apart by the number of the queue pair. Its completions are in a queue
 * of its own, in the connections' main queues (srqmain), or in their receive queues (srqrcq). */

#define ROUNDS 5
#define CONNS 2

static void serve_srq_in(struct side *s, bool own, bool rcqs)
{
	struct side c[CONNS] = {*s, *s};
	struct mem in, out;
	struct rpma_srq *srq;
	struct rpma_srq_cfg *cfg;
	struct rpma_cq *cq[CONNS];
	uint32_t qpn[CONNS];
	int rounds[CONNS] = {0};

	mem_new(s, &in, 16 * 8, RPMA_MR_USAGE_RECV);
	mem_new(s, &out, CONNS * 8, RPMA_MR_USAGE_SEND);
	try(rpma_srq_cfg_new(&cfg));
	try(rpma_srq_cfg_set_rq_size(cfg, 16));
	try(rpma_srq_cfg_set_rcq_size(cfg, own ? 16 : 0));
	try(rpma_srq_new(s->peer, cfg, &srq));
	try(rpma_srq_cfg_delete(&cfg));
	for (int i = 0; i < 16; i++)
		try(rpma_srq_recv(srq, in.mr, i * 8, 8, ID(i)));
	try(rpma_conn_cfg_set_srq(config(s), srq));
	try(rpma_conn_cfg_set_rcq_size(config(s), rcqs ? 10 : 0));
	listen_on(s);
	for (int i = 0; i < CONNS; i++) {
		c[i].ep = s->ep;
		c[i].cfg = s->cfg;
		next_request(&c[i]);
		accept_with(&c[i], NULL, 0);
		try(rpma_conn_get_qp_num(c[i].conn, &qpn[i]));
		if (own)
			try(rpma_srq_get_rcq(srq, &cq[i]));
		else if (rcqs)
			try(rpma_conn_get_rcq(c[i].conn, &cq[i]));
		else
			try(rpma_conn_get_cq(c[i].conn, &cq[i]));
	}
	while (rounds[0] < ROUNDS || rounds[1] < ROUNDS) {
		/* connections wait for each other where each has a queue: the client sends to them in turn */
		struct ibv_wc wc = next_wc(cq[own ? 0 : rounds[0] > rounds[1]]);
		uint64_t v;
		int i;

		check(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND)
			continue;
		for (i = 0; i < CONNS && qpn[i] != wc.qp_num; i++)
			;
		check(i < CONNS && wc.byte_len == 8);
		memcpy(&v, in.p + wc.wr_id * 8, 8);
		v++;
		memcpy(out.p + i * 8, &v, 8);
		try(rpma_srq_recv(srq, in.mr, wc.wr_id * 8, 8, ID(wc.wr_id)));
		try(rpma_send(c[i].conn, out.mr, i * 8, 8, RPMA_F_COMPLETION_ALWAYS, ID(100)));
		rounds[i]++;
		if (own || rcqs)
			expect_wc(cq_of(&c[i]), 100, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < CONNS; i++) {
		end(&c[i], false);
		try(rpma_conn_delete(&c[i].conn));
	}
	try(rpma_srq_delete(&srq));
	say("%d + %d rounds", rounds[0], rounds[1]);
	mem_free(&in);
	mem_free(&out);
}

static void serve_srq(struct side *s) { serve_srq_in(s, true, false); }
static void serve_srqmain(struct side *s) { serve_srq_in(s, false, false); }
static void serve_srqrcq(struct side *s) { serve_srq_in(s, false, true); }

static void dial_srq(struct side *s)
{
	struct side c[CONNS] = {*s, *s};
	struct mem m;

	mem_new(s, &m, CONNS * 16, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV);
	for (int i = 0; i < CONNS; i++)
		connect_with(&c[i], NULL, 0);
	for (uint64_t k = 0; k < ROUNDS; k++)
		for (int i = 0; i < CONNS; i++) {
			uint64_t v = 1000 * i + k;

			memcpy(m.p + i * 16, &v, 8);
			try(rpma_recv(c[i].conn, m.mr, i * 16 + 8, 8, ID(1)));
			try(rpma_send(c[i].conn, m.mr, i * 16, 8, RPMA_F_COMPLETION_ON_ERROR, ID(2)));
			check(expect_wc(cq_of(&c[i]), 1, IBV_WC_SUCCESS).byte_len == 8);
			v++;
			check(!memcmp(m.p + i * 16 + 8, &v, 8));
		}
	for (int i = 0; i < CONNS; i++) {
		settle(&c[i]);
		end(&c[i], true);
		try(rpma_conn_delete(&c[i].conn));
	}
	say("%d + %d rounds", ROUNDS, ROUNDS);
	mem_free(&m);
}

const struct scenario scenarios_messages[] = {
	{"send", serve_send, dial_send},
	{"rcq", serve_rcq, dial_rcq},
	{"shared", serve_shared, dial_shared},
	{"srq", serve_srq, dial_srq},
	{"srqmain", serve_srqmain, dial_srq},
	{"srqrcq", serve_srqrcq, dial_srq},
	{0},
};
