/*
 * What the Go side sees of libibverbs and librdmacm: flat structures and constants
 * of our own. The libraries' headers are included in .c files only, and only where they are.
 *
 * Functions that can fail return 0 or more, or an errno negated: it is taken inside the
 * crossing, since another goroutine may run on this thread right after it. No pointer to Go memory
 * is kept.
 */
#ifndef RDMACORE_CORE_H
#define RDMACORE_CORE_H

#include <stddef.h>
#include <stdint.h>

/* RDMACORE_NO_HEADERS in CGO_CFLAGS builds as if they were not there. */
#if defined(__linux__) && defined(__has_include) && !defined(RDMACORE_NO_HEADERS)
#if __has_include(<infiniband/verbs.h>) && __has_include(<rdma/rdma_cma.h>)
#define CORE_HEADERS 1
#endif
#endif

enum {
	CORE_BATCH = 32,        /* requests or completions in one crossing */
	CORE_SGES = 64,         /* scatter/gather entries in one crossing, so at most for a request */
	CORE_INLINE = 4096,     /* inline bytes in one crossing, so at most for a request */
	CORE_NAME = 64,
	CORE_PRIVATE = 256,
	CORE_EVENTS = 32,
};

/* Values of package verbs. */
enum { CORE_LOCAL_WRITE = 1, CORE_REMOTE_WRITE = 2, CORE_REMOTE_READ = 4, CORE_REMOTE_ATOMIC = 8, CORE_FLUSH_GLOBAL = 16, CORE_FLUSH_PERSISTENT = 32 };
enum {
	CORE_SEND = 1, CORE_SEND_IMM, CORE_SEND_INV, CORE_WRITE, CORE_WRITE_IMM, CORE_READ, CORE_CMP_SWAP, CORE_FETCH_ADD,
	CORE_FLUSH, CORE_ATOMIC_WRITE,
};
enum { CORE_SIGNALED = 1, CORE_SOLICITED = 2, CORE_FENCE = 4 };
enum {
	CORE_WC_SEND = 1, CORE_WC_WRITE, CORE_WC_READ, CORE_WC_CMP_SWAP, CORE_WC_FETCH_ADD, CORE_WC_FLUSH, CORE_WC_ATOMIC_WRITE,
	CORE_WC_RECV, CORE_WC_RECV_IMM,
};
enum { CORE_WC_WITH_IMM = 1, CORE_WC_WITH_INV = 2, CORE_WC_GRH = 4 };

/* Handles. They are the libraries' own objects, seen as bytes that nobody reads. */
typedef struct { char opaque; } rdmacore_ctx;   /* struct ibv_context */
typedef struct { char opaque; } rdmacore_chan; /* struct ibv_comp_channel */
typedef struct { char opaque; } rdmacore_pd;
typedef struct { char opaque; } rdmacore_mr;
typedef struct { char opaque; } rdmacore_cq;
typedef struct { char opaque; } rdmacore_srq;
typedef struct { char opaque; } rdmacore_ah;
typedef struct { char opaque; } rdmacore_qp;
typedef struct { char opaque; } rdmacore_ec; /* struct rdma_event_channel */
typedef struct { char opaque; } rdmacore_id; /* struct rdma_cm_id */

/* A handle, or why there is none: err is an errno negated. */
typedef struct {
	void *p;
	int32_t err;
	int32_t fd; /* of a channel: a duplicate, non-blocking and closed on exec */
} rdmacore_ref;

/* --- the libraries --- */

int rdmacore_headers(void);

/* Why rdmacore_load failed. */
enum { CORE_NO_HEADERS = 1, CORE_NO_LIBIBVERBS, CORE_NO_LIBRDMACM, CORE_NO_SYMBOL };
/* Opens the libraries, once; text says what the dynamic linker said. */
int rdmacore_load(char *text, int room);

/* --- devices --- */

enum { CORE_TRANSPORT_OTHER, CORE_TRANSPORT_IB, CORE_TRANSPORT_IWARP };

typedef struct {
	char name[CORE_NAME];
	int32_t transport;
} rdmacore_listed;

/* Lists devices that have a driver in user space; returns how many there are, perhaps more than max. */
int rdmacore_list(rdmacore_listed *out, int max);

typedef struct {
	int64_t max_msg;
	int32_t max_qp, max_cqe, max_qp_wr, max_sge, max_srq_wr, max_srq_sge;
	int32_t max_rd_atom, max_init_rd_atom;
	int32_t atomics; /* READ-modify-WRITE is atomic at least among this device's */
	int32_t odp; /* on-demand paging: for all that a reliable connection writes and reads */
	int32_t native; /* FLUSH, of both placement types, and ATOMIC WRITE */
	int32_t ports;
	int32_t vectors;
} rdmacore_attr;

typedef struct {
	int64_t max_msg;
	int32_t state; /* enum ibv_port_state: 4 is ACTIVE */
	int32_t active_mtu, max_mtu; /* codes */
	int32_t gids;
	int32_t ethernet;
} rdmacore_port;

typedef struct {
	uint8_t gid[16];
	int32_t ndev; /* interface index, 0 if none */
	int32_t type; /* 0 IB, 1 RoCE v1, 2 RoCE v2, -1 unknown */
	int32_t port, index;
} rdmacore_gid;

rdmacore_ref rdmacore_open(const char *name); /* fd: of asynchronous events */
int rdmacore_close(rdmacore_ctx *);
/* Closes the kernel's side alone, of a device that is gone: from now on things can only be destroyed, and the context closed. */
int rdmacore_vacate(rdmacore_ctx *);
int rdmacore_query(rdmacore_ctx *, rdmacore_attr *);
int rdmacore_query_port(rdmacore_ctx *, int port, rdmacore_port *);
/* Lists the used entries of all ports' tables; returns how many there are, at most max. */
int rdmacore_gids(rdmacore_ctx *, rdmacore_gid *, int max);

enum {
	CORE_ASYNC_NONE,
	CORE_ASYNC_CQ,       /* token: of the queue, which has failed */
	CORE_ASYNC_QP,       /* token: of the queue pair, which has failed */
	CORE_ASYNC_COMM_EST, /* token: of a queue pair whose peer sends already */
	CORE_ASYNC_SRQ,
	CORE_ASYNC_SRQ_LIMIT,
	CORE_ASYNC_DEVICE, /* the device is gone */
	CORE_ASYNC_PORT,
};
typedef struct {
	uint64_t token;
	int32_t kind;
	int32_t event; /* enum ibv_event_type */
} rdmacore_async;
int rdmacore_async_event(rdmacore_ctx *, rdmacore_async *);
int rdmacore_async_kind(int event); /* what an enum ibv_event_type comes to */

/* --- memory --- */

typedef struct {
	rdmacore_mr *mr;
	uint32_t lkey, rkey;
	int32_t err;
} rdmacore_reg;

rdmacore_ref rdmacore_alloc_pd(rdmacore_ctx *);
int rdmacore_dealloc_pd(rdmacore_pd *);
rdmacore_reg rdmacore_reg_mr(rdmacore_pd *, void *addr, size_t len, uint32_t access, int on_demand); /* verbs.Access */
int rdmacore_dereg_mr(rdmacore_mr *);
int rdmacore_advise_mr(rdmacore_pd *, int advice, uint64_t addr, uint64_t len, uint32_t lkey); /* verbs.Advice */

/* --- completion queues --- */

/* A work completion, laid out as verbs.WC. */
typedef struct {
	uint64_t id;
	uint8_t status, op, flags;
	uint32_t byte_len, imm, qpn, vendor_err, src_qp;
	uint16_t slid;
	uint8_t sl, path_bits;
} rdmacore_wc;

rdmacore_ref rdmacore_create_chan(rdmacore_ctx *);
int rdmacore_destroy_chan(rdmacore_chan *);
enum { CORE_DRAINED = 1 << 30 };
/* Takes and acknowledges notifications; returns how many, with CORE_DRAINED if there are no more, -EAGAIN if there are none. */
int rdmacore_cq_events(rdmacore_chan *, uint64_t *tokens, int max);

rdmacore_ref rdmacore_create_cq(rdmacore_ctx *, int depth, uint64_t token, rdmacore_chan *, int vector);
int rdmacore_destroy_cq(rdmacore_cq *);
int rdmacore_arm(rdmacore_cq *);
/* ud: queue pairs for datagrams use the queue. Drivers tell of a GRH with others too, where there is none. */
enum { CORE_ARMED = 1 << 30 };
/* With nothing there, looks on for spin nanoseconds; then, if arm is set, arms and looks once more, and adds CORE_ARMED. */
int rdmacore_poll(rdmacore_cq *, rdmacore_wc *, int n, int ud, int spin, int arm);

/* --- queue pairs --- */

typedef struct {
	rdmacore_cq *send_cq, *recv_cq;
	rdmacore_srq *srq;
	uint64_t token;
	int32_t ud;
	int32_t block_loopback;
	int32_t native; /* for FLUSH and ATOMIC WRITE too */
	int32_t send_wr, recv_wr, send_sge, recv_sge, inline_len; /* and what came of it */
	uint32_t qpn;
	int32_t err;
} rdmacore_qp_init;

rdmacore_qp *rdmacore_create_qp(rdmacore_pd *, rdmacore_qp_init *);
int rdmacore_destroy_qp(rdmacore_qp *);
int rdmacore_qp_error(rdmacore_qp *);

typedef struct {
	uint64_t id;
	uint64_t remote_addr;
	uint64_t compare, swap_add;
	uint64_t ah; /* of a datagram: rdmacore_ah *, else 0 */
	uint32_t rkey;
	uint32_t imm; /* host order; or the key to invalidate */
	uint32_t remote_qpn, remote_qkey;
	uint32_t inline_len; /* of an ATOMIC WRITE: 8, its value */
	uint32_t flush_length;
	uint8_t flush_type, flush_level; /* 1 global visibility, 2 persistence; 0 range, 1 region */
	uint8_t op, flags; /* verbs.Opcode, verbs.SendFlags */
	uint8_t inlined;
	uint8_t nsge;
} rdmacore_send;

typedef struct {
	uint64_t addr;
	uint32_t length, lkey;
} rdmacore_sge;

typedef struct {
	uint64_t id;
	uint32_t nsge;
} rdmacore_recv;

/*
 * Post n requests. Their entries follow one another in sge, their inline bytes in data. *err is 0 or the
 * errno of the first that was not taken; the number of those that were is returned.
 */
int rdmacore_post_send(rdmacore_qp *, const rdmacore_send *, int n, rdmacore_sge *sge, uint8_t *data, int32_t *err);
int rdmacore_post_recv(rdmacore_qp *, const rdmacore_recv *, int n, rdmacore_sge *sge, int32_t *err);
int rdmacore_post_srq(rdmacore_srq *, const rdmacore_recv *, int n, rdmacore_sge *sge, int32_t *err);

rdmacore_ref rdmacore_create_srq(rdmacore_pd *, int wr, int sge, uint64_t token);
int rdmacore_arm_srq(rdmacore_srq *, int limit);
int rdmacore_destroy_srq(rdmacore_srq *);

typedef struct {
	uint8_t dgid[16];
	int32_t sgid_index;
	int32_t port;
	uint32_t flow_label;
	uint16_t lid;
	uint8_t traffic_class, hop_limit, sl, path_bits, static_rate, global;
} rdmacore_ah_attr;
rdmacore_ref rdmacore_create_ah(rdmacore_pd *, const rdmacore_ah_attr *);
int rdmacore_destroy_ah(rdmacore_ah *);

/* --- connection manager --- */

typedef struct {
	uint8_t ip[16];
	uint32_t scope;
	uint16_t port; /* host order */
	uint8_t family; /* 4, 6, 0: none; 16: a group's GID as it is */
} rdmacore_addr;

enum {
	CORE_CM_NONE,
	CORE_CM_ADDR_RESOLVED,
	CORE_CM_ADDR_ERROR,
	CORE_CM_ROUTE_RESOLVED,
	CORE_CM_ROUTE_ERROR,
	CORE_CM_REQUEST,
	CORE_CM_RESPONSE,
	CORE_CM_CONNECT_ERROR,
	CORE_CM_UNREACHABLE,
	CORE_CM_REJECTED,
	CORE_CM_ESTABLISHED,
	CORE_CM_DISCONNECTED,
	CORE_CM_REMOVAL,
	CORE_CM_ADDR_CHANGE,
	CORE_CM_JOINED,
	CORE_CM_JOIN_ERROR,
	CORE_CM_OTHER,
};

/* How a datagram's receiver or a group is reached. */
typedef struct {
	uint8_t sgid[16], dgid[16]; /* all zero: not known; only with global */
	uint32_t qpn, qkey, flow_label;
	uint16_t lid;
	uint8_t port, traffic_class, hop_limit, sl, path_bits, static_rate, global;
} rdmacore_ud;

/* An event, copied and acknowledged. */
typedef struct {
	uint64_t token; /* of the identifier; of a request: the listener's */
	uint64_t request; /* rdmacore_id * */
	uint64_t group; /* token of what was joined or is lost */
	int32_t kind;
	int32_t status;
	uint8_t responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq;
	rdmacore_ud ud; /* of identifiers for datagrams */
	int32_t private_len;
	uint8_t private_data[CORE_PRIVATE];
} rdmacore_event;

typedef struct {
	char device[CORE_NAME];
	int32_t port;
	rdmacore_addr local, remote;
} rdmacore_id_info;

typedef struct {
	uint8_t responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq;
	uint32_t qpn;
	int32_t private_len;
	uint8_t private_data[CORE_PRIVATE];
} rdmacore_param;

rdmacore_ref rdmacore_create_ec(void);
void rdmacore_destroy_ec(rdmacore_ec *);
/* Lets librdmacm forget devices that are gone, which it does as long as there are others. */
void rdmacore_forget(void);
int rdmacore_next_event(rdmacore_ec *, rdmacore_event *);

rdmacore_ref rdmacore_create_id(rdmacore_ec *, int space, uint64_t token);
int rdmacore_destroy_id(rdmacore_id *);
int rdmacore_move_id(rdmacore_id *, rdmacore_ec *, uint64_t token);
int rdmacore_set_tos(rdmacore_id *, int tos);
int rdmacore_set_afonly(rdmacore_id *, int on);
int rdmacore_bind(rdmacore_id *, const rdmacore_addr *);
int rdmacore_resolve_addr(rdmacore_id *, const rdmacore_addr *local, const rdmacore_addr *remote, int ms);
int rdmacore_resolve_route(rdmacore_id *, int ms);
int rdmacore_listen(rdmacore_id *, int backlog);
int rdmacore_info(rdmacore_id *, rdmacore_id_info *);
/* librdmacm's own context of the device that the identifier is bound to, or NULL. It lives as long as the identifier. */
rdmacore_ctx *rdmacore_context(rdmacore_id *);
int rdmacore_connect(rdmacore_id *, const rdmacore_param *);
int rdmacore_accept(rdmacore_id *, const rdmacore_param *);
int rdmacore_establish(rdmacore_id *);
int rdmacore_reject(rdmacore_id *, const uint8_t *data, int len);
int rdmacore_disconnect(rdmacore_id *);
int rdmacore_comm_est(rdmacore_id *);

/* Asks for the queue pair of a service, and answers such a request. */
int rdmacore_lookup(rdmacore_id *, const uint8_t *data, int len);
int rdmacore_reply(rdmacore_id *, uint32_t qpn, const uint8_t *data, int len);

/*
 * Joins and leaves a group, without the queue pair. The port of the address is no port but tells memberships of an
 * identifier apart, for both librdmacm and the kernel compare addresses as a whole.
 */
int rdmacore_join(rdmacore_id *, const rdmacore_addr *group, int send_only, uint64_t token);
int rdmacore_leave(rdmacore_id *, const rdmacore_addr *group);
/* Makes a queue pair receive what is sent to a group. */
int rdmacore_attach(rdmacore_qp *, const uint8_t *mgid, int lid);
int rdmacore_detach(rdmacore_qp *, const uint8_t *mgid, int lid);
/* Takes a queue pair for datagrams from RESET to RTS, as the identifier's address and port space want it. */
int rdmacore_qp_datagrams(rdmacore_id *, rdmacore_qp *);

/* Moves a queue pair to INIT, as the identifier's address wants it. */
int rdmacore_qp_init_state(rdmacore_id *, rdmacore_qp *, int atomics);
/* The same for a queue pair that will never be connected. */
int rdmacore_qp_init_alone(rdmacore_qp *, int port, int atomics);

typedef struct {
	int32_t min_rnr_timer;
	int32_t max_rd_atomic, max_dest_rd_atomic; /* negative: as the messages say; what came of it */
	int32_t path_mtu;                          /* code; what came of it */
	int32_t traffic_class;                     /* 0: as the messages say */
} rdmacore_connect_attr;
/* Takes a queue pair through RTR to RTS, as the messages say. */
int rdmacore_qp_connect(rdmacore_id *, rdmacore_qp *, rdmacore_connect_attr *);

#endif
