/* What the programs of this directory share: one end of a connection of librpma. */
#ifndef PEER_H
#define PEER_H

#include <librpma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DESC 21 /* bytes of a descriptor */
#define OFFER (DESC + 1)

struct mem {
	char *p;
	size_t n;
	struct rpma_mr_local *mr;
};

struct side {
	const char *addr, *port;
	struct rpma_peer *peer;
	struct rpma_ep *ep;
	struct rpma_conn_cfg *cfg; /* as librpma has it, until set */
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_mr_remote *remote; /* the region that the peer offers */
};

struct scenario {
	const char *name;
	void (*serve)(struct side *);
	void (*dial)(struct side *);
};

extern const struct scenario scenarios_onesided[], scenarios_messages[], scenarios_cm[];

void die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* try ends the program if a call failed. */
#define try(call) try_(call, #call)
void try_(int ret, const char *call);
/* must_fail ends it unless the call failed with this code. */
#define must_fail(code, call) must_fail_(code, call, #call)
void must_fail_(int code, int ret, const char *call);
#define check(what) \
	do { \
		if (!(what)) \
			die("%s:%d: not so: %s", __FILE__, __LINE__, #what); \
	} while (0)

struct rpma_conn_cfg *config(struct side *s);
void mem_new(struct side *s, struct mem *m, size_t n, int usage);
void mem_free(struct mem *m);
void fill(char *p, size_t n, int seed);
void expect_pattern(const char *p, size_t n, int seed);

/* The passive side: listen, next_request, posts of receives, accept. */
void listen_on(struct side *s);
void next_request(struct side *s);
void accept_with(struct side *s, const void *pdata, uint8_t n);
void accept_offering(struct side *s, const struct mem *m, bool direct);

/* The active side: request, posts of receives, connect. */
void request(struct side *s);
void connect_with(struct side *s, const void *pdata, uint8_t n);
void take_offer(struct side *s); /* from the private data */

void expect_event(struct side *s, enum rpma_conn_event want);
void end(struct side *s, bool first);
void shut(struct side *s); /* what the connection is made of */

struct rpma_cq *cq_of(struct side *s);
struct ibv_wc next_wc(struct rpma_cq *cq);
struct ibv_wc expect_wc(struct rpma_cq *cq, uint64_t id, enum ibv_wc_status status);
void expect_none(struct rpma_cq *cq);
#define ID(n) ((void *)(uintptr_t)(n))

#endif
