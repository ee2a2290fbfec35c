/* Devices, memory, completion queues and queue pairs: all but posting and polling. */
#include "lib.h"

#ifdef CORE_HEADERS

#include "native.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CTX(p) ((struct ibv_context *)(p))
#define CHAN(p) ((struct ibv_comp_channel *)(p))
#define PD(p) ((struct ibv_pd *)(p))
#define CQ(p) ((struct ibv_cq *)(p))
#define QP(p) ((struct ibv_qp *)(p))
#define SRQ(p) ((struct ibv_srq *)(p))

static rdmacore_ref made(void *p, int fallback)
{
	rdmacore_ref r = {p, 0, -1};

	if (!p)
		r.err = rdmacore_errno(fallback);
	return r;
}

/* Functions that destroy or modify return an errno, or -1 and set it. */
static int done(int rc)
{
	if (rc < 0)
		return rdmacore_errno(EIO);
	return -rc;
}

/* --- devices --- */

static int transport(struct ibv_device *d)
{
	switch (d->transport_type) {
	case IBV_TRANSPORT_IB:
		return CORE_TRANSPORT_IB;
	case IBV_TRANSPORT_IWARP:
		return CORE_TRANSPORT_IWARP;
	default:
		return CORE_TRANSPORT_OTHER;
	}
}

int rdmacore_list(rdmacore_listed *out, int max)
{
	int n = 0;
	struct ibv_device **list;

	errno = 0;
	list = ibv_get_device_list(&n);
	if (!list)
		return rdmacore_errno(ENODEV);
	for (int i = 0; i < n && i < max; i++) {
		strncpy(out[i].name, ibv_get_device_name(list[i]), CORE_NAME - 1);
		out[i].name[CORE_NAME - 1] = 0;
		out[i].transport = transport(list[i]);
	}
	ibv_free_device_list(list);
	return n;
}

rdmacore_ref rdmacore_open(const char *name)
{
	rdmacore_ref r = {NULL, -ENODEV, -1};
	struct ibv_device **list;
	struct ibv_context *ctx;

	errno = 0;
	list = ibv_get_device_list(NULL);
	if (!list) {
		r.err = rdmacore_errno(ENODEV);
		return r;
	}
	for (int i = 0; list[i]; i++) {
		if (strcmp(ibv_get_device_name(list[i]), name) != 0)
			continue;
		errno = 0;
		ctx = ibv_open_device(list[i]);
		r = made(ctx, ENODEV);
		if (!ctx)
			break;
		r.fd = rdmacore_dup(ctx->async_fd);
		if (r.fd < 0) {
			r.err = r.fd;
			r.p = NULL;
			ibv_close_device(ctx);
		}
		break;
	}
	ibv_free_device_list(list);
	return r;
}

int rdmacore_close(rdmacore_ctx *c)
{
	errno = 0;
	return done(ibv_close_device(CTX(c)));
}

/*
 * A driver that cannot take itself away from programs (rdma_rxe) waits until the last descriptor is closed. librdmacm has
 * some as well: it opens a device when the first identifier is bound to it, and closes it when it sees that it is gone
 * from a list that has others, so the only one never. Those of /dev/null take their place, which whoever has the context may
 * use, in vain, and close.
 */
int rdmacore_vacate(rdmacore_ctx *c)
{
	int null, err = 0;

	errno = 0;
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0)
		return rdmacore_errno(EMFILE);
	if (CTX(c)->cmd_fd >= 0 && dup3(null, CTX(c)->cmd_fd, O_CLOEXEC) < 0)
		err = rdmacore_errno(EBADF);
	if (CTX(c)->async_fd >= 0 && dup3(null, CTX(c)->async_fd, O_CLOEXEC) < 0)
		err = rdmacore_errno(EBADF);
	close(null);
	return err;
}

int rdmacore_query(rdmacore_ctx *c, rdmacore_attr *out)
{
	struct ibv_device_attr a;
	struct ibv_device_attr_ex ex;
	int rc;

	memset(out, 0, sizeof *out);
	errno = 0;
	rc = ibv_query_device(CTX(c), &a);
	if (rc)
		return done(rc);
	out->max_qp = a.max_qp;
	out->max_cqe = a.max_cqe;
	out->max_qp_wr = a.max_qp_wr;
	out->max_sge = a.max_sge < CORE_SGES ? a.max_sge : CORE_SGES;
	out->max_srq_wr = a.max_srq_wr;
	out->max_srq_sge = a.max_srq_sge < CORE_SGES ? a.max_srq_sge : CORE_SGES;
	out->max_rd_atom = a.max_qp_rd_atom;
	out->max_init_rd_atom = a.max_qp_init_rd_atom;
	out->atomics = a.atomic_cap != IBV_ATOMIC_NONE;
	out->ports = a.phys_port_cnt;
	out->vectors = CTX(c)->num_comp_vectors;
	memset(&ex, 0, sizeof ex);
	if (ibv_query_device_ex(CTX(c), NULL, &ex) == 0) {
		out->native = rdmacore_native_caps(&ex) && rdmacore_native_try(CTX(c));
		out->odp = (ex.odp_caps.general_caps & IBV_ODP_SUPPORT) &&
			   !(~ex.odp_caps.per_transport_caps.rc_odp_caps & (IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ));
	}
	return 0;
}

int rdmacore_query_port(rdmacore_ctx *c, int port, rdmacore_port *out)
{
	struct ibv_port_attr a;
	int rc;

	memset(out, 0, sizeof *out);
	memset(&a, 0, sizeof a);
	errno = 0;
	rc = ibv_query_port(CTX(c), port, &a);
	if (rc)
		return done(rc);
	out->state = a.state;
	out->active_mtu = a.active_mtu;
	out->max_mtu = a.max_mtu;
	out->gids = a.gid_tbl_len;
	out->max_msg = a.max_msg_sz;
	out->ethernet = a.link_layer == IBV_LINK_LAYER_ETHERNET;
	return 0;
}

int rdmacore_gids(rdmacore_ctx *c, rdmacore_gid *out, int max)
{
	static const union ibv_gid zero;
	struct ibv_gid_entry *e;
	struct ibv_device_attr dev;
	struct ibv_port_attr attr;
	union ibv_gid gid;
	ssize_t n;
	int rc;

	errno = 0;
	if (rdmacore_has_gid_table()) {
		e = calloc(max, sizeof *e);
		if (!e)
			return -ENOMEM;
		n = ibv_query_gid_table(CTX(c), e, max, 0);
		for (ssize_t i = 0; i < n; i++) {
			memcpy(out[i].gid, e[i].gid.raw, sizeof out[i].gid);
			out[i].ndev = e[i].ndev_ifindex;
			out[i].type = e[i].gid_type;
			out[i].port = e[i].port_num;
			out[i].index = e[i].gid_index;
		}
		free(e);
		return n;
	}
	rc = ibv_query_device(CTX(c), &dev);
	if (rc)
		return done(rc);
	n = 0;
	for (int p = 1; p <= dev.phys_port_cnt; p++) {
		if (ibv_query_port(CTX(c), p, &attr))
			continue;
		for (int i = 0; i < attr.gid_tbl_len && n < max; i++) {
			if (ibv_query_gid(CTX(c), p, i, &gid) || !memcmp(&gid, &zero, sizeof gid))
				continue;
			memset(&out[n], 0, sizeof out[n]);
			memcpy(out[n].gid, gid.raw, sizeof out[n].gid);
			out[n].type = -1;
			out[n].port = p;
			out[n++].index = i;
		}
	}
	return n;
}

int rdmacore_async_kind(int event)
{
	switch (event) {
	case IBV_EVENT_CQ_ERR:
		return CORE_ASYNC_CQ;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_PATH_MIG_ERR:
		return CORE_ASYNC_QP;
	case IBV_EVENT_COMM_EST:
		return CORE_ASYNC_COMM_EST;
	case IBV_EVENT_SRQ_ERR:
		return CORE_ASYNC_SRQ;
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return CORE_ASYNC_SRQ_LIMIT;
	case IBV_EVENT_DEVICE_FATAL:
		return CORE_ASYNC_DEVICE;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_GID_CHANGE:
	case IBV_EVENT_LID_CHANGE:
		return CORE_ASYNC_PORT;
	default:
		return CORE_ASYNC_NONE;
	}
}

int rdmacore_async_event(rdmacore_ctx *c, rdmacore_async *out)
{
	struct ibv_async_event e;
	int rc;

	memset(out, 0, sizeof *out);
	do {
		errno = 0;
		rc = ibv_get_async_event(CTX(c), &e);
	} while (rc && errno == EINTR);
	if (rc)
		return rdmacore_errno(EIO);
	out->event = e.event_type;
	out->kind = rdmacore_async_kind(e.event_type);
	switch (out->kind) {
	case CORE_ASYNC_CQ:
		out->token = (uintptr_t)e.element.cq->cq_context;
		break;
	case CORE_ASYNC_QP:
	case CORE_ASYNC_COMM_EST:
		out->token = (uintptr_t)e.element.qp->qp_context;
		break;
	case CORE_ASYNC_SRQ:
	case CORE_ASYNC_SRQ_LIMIT:
		out->token = (uintptr_t)e.element.srq->srq_context;
		break;
	}
	ibv_ack_async_event(&e);
	return 0;
}

/* --- memory --- */

rdmacore_ref rdmacore_alloc_pd(rdmacore_ctx *c)
{
	errno = 0;
	return made(ibv_alloc_pd(CTX(c)), ENOMEM);
}

int rdmacore_dealloc_pd(rdmacore_pd *pd)
{
	errno = 0;
	return done(ibv_dealloc_pd(PD(pd)));
}

rdmacore_reg rdmacore_reg_mr(rdmacore_pd *pd, void *addr, size_t len, uint32_t access, int on_demand)
{
	rdmacore_reg r = {NULL, 0, 0, 0};
	struct ibv_mr *mr;
	int flags = 0;

	if (access & CORE_LOCAL_WRITE)
		flags |= IBV_ACCESS_LOCAL_WRITE;
	if (access & CORE_REMOTE_WRITE)
		flags |= IBV_ACCESS_REMOTE_WRITE;
	if (access & CORE_REMOTE_READ)
		flags |= IBV_ACCESS_REMOTE_READ;
	if (access & CORE_REMOTE_ATOMIC)
		flags |= IBV_ACCESS_REMOTE_ATOMIC;
	if (access & CORE_FLUSH_GLOBAL)
		flags |= 1 << 8; /* IBV_ACCESS_FLUSH_GLOBAL and IBV_ACCESS_FLUSH_PERSISTENT, see native.c */
	if (access & CORE_FLUSH_PERSISTENT)
		flags |= 1 << 9;
	if (on_demand)
		flags |= IBV_ACCESS_ON_DEMAND;
	errno = 0;
	/* The macro of the same name may choose a function that old libraries lack; no flag here needs it. */
	mr = (ibv_reg_mr)(PD(pd), addr, len, flags);
	if (!mr) {
		r.err = rdmacore_errno(ENOMEM);
		return r;
	}
	r.mr = (rdmacore_mr *)mr;
	r.lkey = mr->lkey;
	r.rkey = mr->rkey;
	return r;
}

int rdmacore_dereg_mr(rdmacore_mr *mr)
{
	errno = 0;
	return done(ibv_dereg_mr((struct ibv_mr *)mr));
}

/* --- completion queues --- */

rdmacore_ref rdmacore_create_chan(rdmacore_ctx *c)
{
	struct ibv_comp_channel *ch;
	rdmacore_ref r;

	errno = 0;
	ch = ibv_create_comp_channel(CTX(c));
	r = made(ch, ENOMEM);
	if (!ch)
		return r;
	r.fd = rdmacore_dup(ch->fd);
	if (r.fd < 0) {
		r.err = r.fd;
		r.p = NULL;
		ibv_destroy_comp_channel(ch);
	}
	return r;
}

int rdmacore_destroy_chan(rdmacore_chan *ch)
{
	errno = 0;
	return done(ibv_destroy_comp_channel(CHAN(ch)));
}

int rdmacore_cq_events(rdmacore_chan *ch, uint64_t *tokens, int max)
{
	int n = 0;

	while (n < max) {
		struct ibv_cq *cq;
		void *token;

		errno = 0;
		if (ibv_get_cq_event(CHAN(ch), &cq, &token)) {
			if (errno == EINTR)
				continue;
			if (n > 0)
				return errno == EAGAIN ? n | CORE_DRAINED : n;
			return rdmacore_errno(EIO);
		}
		tokens[n++] = (uintptr_t)token;
		/* At once: destroying a queue waits for it. */
		ibv_ack_cq_events(cq, 1);
	}
	return n;
}

rdmacore_ref rdmacore_create_cq(rdmacore_ctx *c, int depth, uint64_t token, rdmacore_chan *ch, int vector)
{
	errno = 0;
	return made(ibv_create_cq(CTX(c), depth, (void *)(uintptr_t)token, CHAN(ch), vector), ENOMEM);
}

int rdmacore_destroy_cq(rdmacore_cq *cq)
{
	errno = 0;
	return done(ibv_destroy_cq(CQ(cq)));
}

/* --- queue pairs --- */

rdmacore_qp *rdmacore_create_qp(rdmacore_pd *pd, rdmacore_qp_init *init)
{
	struct ibv_qp_init_attr a;
	struct ibv_qp_init_attr_ex ex;
	struct ibv_qp *qp = NULL;

	memset(&a, 0, sizeof a);
	a.qp_context = (void *)(uintptr_t)init->token;
	a.send_cq = CQ(init->send_cq);
	a.recv_cq = CQ(init->recv_cq);
	a.srq = SRQ(init->srq);
	a.cap.max_send_wr = init->send_wr;
	a.cap.max_recv_wr = init->srq ? 0 : init->recv_wr;
	a.cap.max_send_sge = init->send_sge;
	a.cap.max_recv_sge = init->srq ? 0 : init->recv_sge;
	a.cap.max_inline_data = init->inline_len;
	a.qp_type = init->ud ? IBV_QPT_UD : IBV_QPT_RC;
	errno = 0;
	if (init->block_loopback) {
		memset(&ex, 0, sizeof ex);
		ex.qp_context = a.qp_context;
		ex.send_cq = a.send_cq;
		ex.recv_cq = a.recv_cq;
		ex.srq = a.srq;
		ex.cap = a.cap;
		ex.qp_type = a.qp_type;
		ex.pd = PD(pd);
		ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
		ex.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
		qp = ibv_create_qp_ex(PD(pd)->context, &ex);
		a.cap = ex.cap;
	} else if (init->native) {
		qp = rdmacore_native_qp(PD(pd), &a);
	} else {
		qp = ibv_create_qp(PD(pd), &a);
	}
	if (!qp) {
		init->err = rdmacore_errno(ENOMEM);
		return NULL;
	}
	init->send_wr = a.cap.max_send_wr;
	init->recv_wr = a.cap.max_recv_wr;
	init->send_sge = a.cap.max_send_sge;
	init->recv_sge = a.cap.max_recv_sge;
	init->inline_len = a.cap.max_inline_data;
	init->qpn = qp->qp_num;
	init->err = 0;
	return (rdmacore_qp *)qp;
}

int rdmacore_destroy_qp(rdmacore_qp *qp)
{
	errno = 0;
	return done(ibv_destroy_qp(QP(qp)));
}

int rdmacore_qp_error(rdmacore_qp *qp)
{
	struct ibv_qp_attr a;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_ERR;
	errno = 0;
	return done(ibv_modify_qp(QP(qp), &a, IBV_QP_STATE));
}

rdmacore_ref rdmacore_create_srq(rdmacore_pd *pd, int wr, int sge, uint64_t token)
{
	struct ibv_srq_init_attr a;

	memset(&a, 0, sizeof a);
	a.srq_context = (void *)(uintptr_t)token;
	a.attr.max_wr = wr;
	a.attr.max_sge = sge;
	errno = 0;
	return made(ibv_create_srq(PD(pd), &a), ENOMEM);
}

int rdmacore_arm_srq(rdmacore_srq *s, int limit)
{
	struct ibv_srq_attr a;

	memset(&a, 0, sizeof a);
	a.srq_limit = limit;
	errno = 0;
	return done(ibv_modify_srq(SRQ(s), &a, IBV_SRQ_LIMIT));
}

int rdmacore_destroy_srq(rdmacore_srq *s)
{
	errno = 0;
	return done(ibv_destroy_srq(SRQ(s)));
}

rdmacore_ref rdmacore_create_ah(rdmacore_pd *pd, const rdmacore_ah_attr *in)
{
	struct ibv_ah_attr a;

	memset(&a, 0, sizeof a);
	a.is_global = in->global;
	memcpy(a.grh.dgid.raw, in->dgid, sizeof in->dgid);
	a.grh.sgid_index = in->sgid_index;
	a.grh.flow_label = in->flow_label;
	a.grh.hop_limit = in->hop_limit;
	a.grh.traffic_class = in->traffic_class;
	a.port_num = in->port;
	a.dlid = in->lid;
	a.sl = in->sl;
	a.src_path_bits = in->path_bits;
	a.static_rate = in->static_rate;
	errno = 0;
	return made(ibv_create_ah(PD(pd), &a), ENOMEM);
}

int rdmacore_attach(rdmacore_qp *qp, const uint8_t *mgid, int lid)
{
	union ibv_gid gid;

	memcpy(gid.raw, mgid, sizeof gid.raw);
	errno = 0;
	return done(ibv_attach_mcast(QP(qp), &gid, lid));
}

int rdmacore_detach(rdmacore_qp *qp, const uint8_t *mgid, int lid)
{
	union ibv_gid gid;

	memcpy(gid.raw, mgid, sizeof gid.raw);
	errno = 0;
	return done(ibv_detach_mcast(QP(qp), &gid, lid));
}

int rdmacore_destroy_ah(rdmacore_ah *ah)
{
	errno = 0;
	return done(ibv_destroy_ah((struct ibv_ah *)ah));
}

#endif
