/* READ, WRITE, flush and atomic write. */
#include "peer.h"

#include <arpa/inet.h>
#include <string.h>

#define SIZE 100001

static const struct {
	size_t off, len;
} ranges[] = {{0, SIZE}, {1, 1}, {4095, 2}, {SIZE - 1, 1}, {77, 40000}, {SIZE, 0}};

#define RANGES (sizeof ranges / sizeof *ranges)
#define PART 1000
#define PARTS 9 /* and one that is signaled: a send queue of 10 */

/* read */

static void serve_read(struct side *s)
{
	struct mem m;

	mem_new(s, &m, SIZE, RPMA_MR_USAGE_READ_SRC);
	fill(m.p, SIZE, 1);
	listen_on(s);
	next_request(s);
	accept_offering(s, &m, false);
	end(s, false);
	expect_pattern(m.p, SIZE, 1);
	mem_free(&m);
}

static void dial_read(struct side *s)
{
	struct mem src, m;
	struct rpma_cq *cq;
	size_t n;

	mem_new(s, &src, SIZE, RPMA_MR_USAGE_READ_DST); /* only to compare with */
	fill(src.p, SIZE, 1);
	mem_new(s, &m, SIZE, RPMA_MR_USAGE_READ_DST);
	connect_with(s, NULL, 0);
	take_offer(s);
	cq = cq_of(s);
	try(rpma_mr_remote_get_size(s->remote, &n));
	check(n == SIZE);
	for (unsigned i = 0; i < RANGES; i++) {
		memset(m.p, 0, SIZE);
		try(rpma_read(s->conn, m.mr, ranges[i].off, s->remote, ranges[i].off, ranges[i].len, RPMA_F_COMPLETION_ALWAYS, ID(i + 1)));
		check(expect_wc(cq, i + 1, IBV_WC_SUCCESS).opcode == IBV_WC_RDMA_READ);
		check(!memcmp(m.p + ranges[i].off, src.p + ranges[i].off, ranges[i].len));
	}
	try(rpma_read(s->conn, NULL, 0, NULL, 0, 0, RPMA_F_COMPLETION_ALWAYS, ID(50)));
	expect_wc(cq, 50, IBV_WC_SUCCESS);
	memset(m.p, 0, SIZE);
	for (int i = 0; i <= PARTS; i++)
		try(rpma_read(s->conn, m.mr, i * PART, s->remote, i * PART, PART, i < PARTS ? RPMA_F_COMPLETION_ON_ERROR : RPMA_F_COMPLETION_ALWAYS,
			ID(100 + i)));
	expect_wc(cq, 100 + PARTS, IBV_WC_SUCCESS);
	expect_pattern(m.p, (PARTS + 1) * PART, 1);
	expect_none(cq);
	end(s, true);
	say("read %d bytes", SIZE);
	mem_free(&m);
	mem_free(&src);
}

/* write: and with immediate data, for which the server waits */

static void serve_write(struct side *s)
{
	struct mem m;
	struct ibv_wc wc;

	mem_new(s, &m, SIZE, RPMA_MR_USAGE_WRITE_DST);
	listen_on(s);
	next_request(s);
	try(rpma_conn_req_recv(s->req, m.mr, 0, 0, ID(1)));
	try(rpma_conn_req_recv(s->req, m.mr, 0, 0, ID(2)));
	accept_offering(s, &m, false);
	for (int i = 1; i <= 2; i++) {
		wc = expect_wc(cq_of(s), i, IBV_WC_SUCCESS);
		check(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wc_flags & IBV_WC_WITH_IMM);
		say("%u bytes with %#x", wc.byte_len, ntohl(wc.imm_data));
		expect_pattern(m.p, SIZE, 2);
	}
	end(s, false);
	mem_free(&m);
}

static void dial_write(struct side *s)
{
	struct mem m;
	struct rpma_cq *cq;

	mem_new(s, &m, SIZE, RPMA_MR_USAGE_WRITE_SRC);
	fill(m.p, SIZE, 2);
	connect_with(s, NULL, 0);
	take_offer(s);
	cq = cq_of(s);
	for (unsigned i = 0; i < RANGES; i++) {
		try(rpma_write(s->conn, s->remote, ranges[i].off, m.mr, ranges[i].off, ranges[i].len, RPMA_F_COMPLETION_ALWAYS, ID(i + 1)));
		check(expect_wc(cq, i + 1, IBV_WC_SUCCESS).opcode == IBV_WC_RDMA_WRITE);
	}
	try(rpma_write(s->conn, NULL, 0, NULL, 0, 0, RPMA_F_COMPLETION_ALWAYS, ID(50)));
	expect_wc(cq, 50, IBV_WC_SUCCESS);
	for (int i = 0; i <= PARTS; i++)
		try(rpma_write(s->conn, s->remote, i * PART, m.mr, i * PART, PART, i < PARTS ? RPMA_F_COMPLETION_ON_ERROR : RPMA_F_COMPLETION_ALWAYS,
			ID(100 + i)));
	expect_wc(cq, 100 + PARTS, IBV_WC_SUCCESS);
	try(rpma_write_with_imm(s->conn, s->remote, 5, m.mr, 5, 1000, RPMA_F_COMPLETION_ALWAYS, 0xa1b2c3d4, ID(200)));
	expect_wc(cq, 200, IBV_WC_SUCCESS);
	try(rpma_write_with_imm(s->conn, NULL, 0, NULL, 0, 0, RPMA_F_COMPLETION_ALWAYS, 7, ID(201)));
	expect_wc(cq, 201, IBV_WC_SUCCESS);
	expect_none(cq);
	end(s, true);
	say("wrote %d bytes", SIZE);
	mem_free(&m);
}

/* flush: of both types; the server says in its peer configuration that writes go to persistent memory directly */

static void serve_flush(struct side *s)
{
	struct mem m;

	mem_new(s, &m, SIZE, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT);
	listen_on(s);
	next_request(s);
	accept_offering(s, &m, true);
	end(s, false);
	expect_pattern(m.p, SIZE, 3);
	say("flushed");
	mem_free(&m);
}

static void dial_flush(struct side *s)
{
	struct mem m;
	struct rpma_cq *cq;
	struct rpma_conn_private_data d;
	struct rpma_peer_cfg *pcfg;
	bool direct;
	int types;
	static const enum rpma_flush_type type[] = {RPMA_FLUSH_TYPE_VISIBILITY, RPMA_FLUSH_TYPE_PERSISTENT};

	mem_new(s, &m, SIZE, RPMA_MR_USAGE_WRITE_SRC);
	fill(m.p, SIZE, 3);
	connect_with(s, NULL, 0);
	take_offer(s);
	cq = cq_of(s);
	try(rpma_mr_remote_get_flush_type(s->remote, &types));
	check(types == (RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT));
	must_fail(RPMA_E_NOSUPP, rpma_flush(s->conn, s->remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, RPMA_F_COMPLETION_ALWAYS, ID(1)));
	try(rpma_conn_get_private_data(s->conn, &d));
	try(rpma_peer_cfg_from_descriptor((char *)d.ptr + DESC, 1, &pcfg));
	try(rpma_peer_cfg_get_direct_write_to_pmem(pcfg, &direct));
	check(direct);
	try(rpma_conn_apply_remote_peer_cfg(s->conn, pcfg));
	try(rpma_peer_cfg_delete(&pcfg));
	for (int i = 0; i < 2; i++) {
		size_t half = SIZE / 2, off = i * half, n = i ? SIZE - half : half;

		try(rpma_write(s->conn, s->remote, off, m.mr, off, n, RPMA_F_COMPLETION_ON_ERROR, ID(10 + i)));
		try(rpma_flush(s->conn, s->remote, off, n, type[i], RPMA_F_COMPLETION_ALWAYS, ID(20 + i)));
		expect_wc(cq, 20 + i, IBV_WC_SUCCESS);
	}
	expect_none(cq);
	end(s, true);
	say("flushed");
	mem_free(&m);
}

/* noflush: a region that is not for it */

static void serve_noflush(struct side *s)
{
	struct mem m;

	mem_new(s, &m, 4096, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY);
	listen_on(s);
	next_request(s);
	accept_offering(s, &m, true);
	end(s, false);
	mem_free(&m);
}

static void dial_noflush(struct side *s)
{
	struct rpma_peer_cfg *pcfg;

	connect_with(s, NULL, 0);
	take_offer(s);
	try(rpma_peer_cfg_new(&pcfg));
	try(rpma_peer_cfg_set_direct_write_to_pmem(pcfg, true));
	try(rpma_conn_apply_remote_peer_cfg(s->conn, pcfg));
	try(rpma_peer_cfg_delete(&pcfg));
	must_fail(RPMA_E_NOSUPP, rpma_flush(s->conn, s->remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, RPMA_F_COMPLETION_ALWAYS, ID(1)));
	try(rpma_flush(s->conn, s->remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, ID(2)));
	expect_wc(cq_of(s), 2, IBV_WC_SUCCESS);
	end(s, true);
	say("not persistent");
}

/* atomic: a log of words behind a counter, which never runs ahead of them */

static const char *const words[] = {"alpha", "beta", "gamma", "delta"};
#define WORDS (sizeof words / sizeof *words)

static void serve_atomic(struct side *s)
{
	struct mem m;
	uint64_t used;

	mem_new(s, &m, 4096, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY);
	listen_on(s);
	next_request(s);
	accept_offering(s, &m, false);
	end(s, false);
	memcpy(&used, m.p + 8, 8);
	say("log: %.*s", (int)used, m.p + 16);
	mem_free(&m);
}

static void dial_atomic(struct side *s)
{
	struct mem m;
	struct rpma_cq *cq;
	uint64_t used = 0;
	char v[8] = {0};

	mem_new(s, &m, 4096, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST);
	connect_with(s, NULL, 0);
	take_offer(s);
	cq = cq_of(s);
	must_fail(RPMA_E_INVAL, rpma_atomic_write(s->conn, s->remote, 12, v, RPMA_F_COMPLETION_ALWAYS, ID(1)));
	for (unsigned i = 0; i < WORDS; i++) {
		size_t n = strlen(words[i]);

		memcpy(m.p, words[i], n);
		try(rpma_write(s->conn, s->remote, 16 + used, m.mr, 0, n, RPMA_F_COMPLETION_ON_ERROR, NULL));
		try(rpma_flush(s->conn, s->remote, 16 + used, n, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ON_ERROR, NULL));
		used += n;
		memcpy(v, &used, 8);
		try(rpma_atomic_write(s->conn, s->remote, 8, v, RPMA_F_COMPLETION_ON_ERROR, NULL));
		memset(v, 0xff, 8); /* it was taken already */
		try(rpma_flush(s->conn, s->remote, 8, 8, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, ID(10 + i)));
		expect_wc(cq, 10 + i, IBV_WC_SUCCESS);
		try(rpma_read(s->conn, m.mr, 64, s->remote, 8, 8, RPMA_F_COMPLETION_ALWAYS, ID(20 + i)));
		expect_wc(cq, 20 + i, IBV_WC_SUCCESS);
		check(!memcmp(m.p + 64, &used, 8));
	}
	end(s, true);
	say("used: %lu", used);
	mem_free(&m);
}

/* access: requests that the server's descriptor does not allow, by clients that have changed it */

static void serve_access(struct side *s)
{
	struct mem m;

	mem_new(s, &m, 4096, RPMA_MR_USAGE_READ_SRC);
	fill(m.p, 4096, 4);
	listen_on(s);
	for (int i = 0; i < 2; i++) {
		next_request(s);
		accept_offering(s, &m, false);
		end(s, false);
		try(rpma_conn_delete(&s->conn));
	}
	expect_pattern(m.p, 4096, 4);
	say("unharmed");
	mem_free(&m);
}

static void dial_access(struct side *s)
{
	struct mem m;
	struct rpma_conn_private_data d;
	char desc[DESC];

	mem_new(s, &m, 8192, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST);
	for (int i = 0; i < 2; i++) {
		connect_with(s, NULL, 0);
		try(rpma_conn_get_private_data(s->conn, &d));
		memcpy(desc, d.ptr, DESC);
		desc[9] = 0x20; /* 8 KiB */
		desc[20] |= RPMA_MR_USAGE_WRITE_DST;
		try(rpma_mr_remote_from_descriptor(desc, DESC, &s->remote));
		if (i == 0)
			try(rpma_read(s->conn, m.mr, 0, s->remote, 4000, 97, RPMA_F_COMPLETION_ON_ERROR, ID(1)));
		else
			try(rpma_write(s->conn, s->remote, 0, m.mr, 0, 8, RPMA_F_COMPLETION_ON_ERROR, ID(1)));
		expect_wc(cq_of(s), 1, IBV_WC_REM_ACCESS_ERR);
		end(s, true);
		try(rpma_mr_remote_delete(&s->remote));
		try(rpma_conn_delete(&s->conn));
	}
	say("refused");
	mem_free(&m);
}

const struct scenario scenarios_onesided[] = {
	{"read", serve_read, dial_read},
	{"write", serve_write, dial_write},
	{"flush", serve_flush, dial_flush},
	{"noflush", serve_noflush, dial_noflush},
	{"atomic", serve_atomic, dial_atomic},
	{"access", serve_access, dial_access},
	{0},
};
