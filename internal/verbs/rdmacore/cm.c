/*
 * The connection manager. The identifier's own queue pair stays empty: ours is moved here, as
 * rdma_init_qp_attr tells, so that its RNR timer can be set, a DREQ is answered while it still has
 * its state, and the two are destroyed in any order.
 */
#include "lib.h"

#ifdef CORE_HEADERS

#include <endian.h>
#include <infiniband/ib.h>
#include <netinet/in.h>
#include <string.h>

#define EC(p) ((struct rdma_event_channel *)(p))
#define ID(p) ((struct rdma_cm_id *)(p))

/* Why a call failed. Of an identifier whose device is being removed the kernel says ENXIO, often before the event that tells. */
static int failed(void)
{
	int err = rdmacore_errno(EIO);

	return err == -ENXIO ? -ENODEV : err;
}

static int result(int rc)
{
	return rc ? failed() : 0;
}

union address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_ib ib;
};

static struct sockaddr *to_sockaddr(union address *a, const rdmacore_addr *in)
{
	memset(a, 0, sizeof *a);
	switch (in->family) {
	case 4:
		a->in.sin_family = AF_INET;
		a->in.sin_port = htons(in->port);
		memcpy(&a->in.sin_addr, in->ip, 4);
		break;
	case 6:
		a->in6.sin6_family = AF_INET6;
		a->in6.sin6_port = htons(in->port);
		memcpy(&a->in6.sin6_addr, in->ip, 16);
		a->in6.sin6_scope_id = in->scope;
		break;
	case 16:
		a->ib.sib_family = AF_IB;
		a->ib.sib_sid = htobe64(in->port);
		memcpy(&a->ib.sib_addr, in->ip, 16);
		break;
	default:
		return NULL;
	}
	return &a->sa;
}

static void from_sockaddr(rdmacore_addr *out, const struct sockaddr *sa)
{
	memset(out, 0, sizeof *out);
	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const void *)sa;

		out->family = 4;
		out->port = ntohs(in->sin_port);
		memcpy(out->ip, &in->sin_addr, 4);
	} else if (sa->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const void *)sa;

		out->family = 6;
		out->port = ntohs(in6->sin6_port);
		out->scope = in6->sin6_scope_id;
		memcpy(out->ip, &in6->sin6_addr, 16);
	}
}

rdmacore_ref rdmacore_create_ec(void)
{
	rdmacore_ref r = {NULL, 0, -1};
	struct rdma_event_channel *ec;

	errno = 0;
	ec = rdma_create_event_channel();
	if (!ec) {
		r.err = rdmacore_errno(ENODEV);
		return r;
	}
	r.fd = rdmacore_dup(ec->fd);
	if (r.fd < 0) {
		r.err = r.fd;
		rdma_destroy_event_channel(ec);
		return r;
	}
	r.p = ec;
	return r;
}

void rdmacore_destroy_ec(rdmacore_ec *ec) { rdma_destroy_event_channel(EC(ec)); }

/* librdmacm looks for what has changed among the devices when it is asked for them. */
void rdmacore_forget(void)
{
	struct ibv_context **list = rdma_get_devices(NULL);

	if (list)
		rdma_free_devices(list);
}

static int kind(enum rdma_cm_event_type t)
{
	switch (t) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		return CORE_CM_ADDR_RESOLVED;
	case RDMA_CM_EVENT_ADDR_ERROR:
		return CORE_CM_ADDR_ERROR;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		return CORE_CM_ROUTE_RESOLVED;
	case RDMA_CM_EVENT_ROUTE_ERROR:
		return CORE_CM_ROUTE_ERROR;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		return CORE_CM_REQUEST;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		return CORE_CM_RESPONSE;
	case RDMA_CM_EVENT_CONNECT_ERROR:
		return CORE_CM_CONNECT_ERROR;
	case RDMA_CM_EVENT_UNREACHABLE:
		return CORE_CM_UNREACHABLE;
	case RDMA_CM_EVENT_REJECTED:
		return CORE_CM_REJECTED;
	case RDMA_CM_EVENT_ESTABLISHED:
		return CORE_CM_ESTABLISHED;
	case RDMA_CM_EVENT_DISCONNECTED:
		return CORE_CM_DISCONNECTED;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		return CORE_CM_REMOVAL;
	case RDMA_CM_EVENT_ADDR_CHANGE:
		return CORE_CM_ADDR_CHANGE;
	case RDMA_CM_EVENT_MULTICAST_JOIN:
		return CORE_CM_JOINED;
	case RDMA_CM_EVENT_MULTICAST_ERROR:
		return CORE_CM_JOIN_ERROR;
	default:
		return CORE_CM_OTHER;
	}
}

static void copy_private(rdmacore_event *out, const void *data, int len)
{
	if (!data || len <= 0)
		return;
	out->private_len = len < CORE_PRIVATE ? len : CORE_PRIVATE;
	memcpy(out->private_data, data, out->private_len);
}

/* What came with an event of an identifier for datagrams. */
static void copy_ud(rdmacore_event *out, const struct rdma_cm_event *e)
{
	const struct rdma_ud_param *p = &e->param.ud;
	const struct ibv_ah_attr *a = &p->ah_attr;
	union ibv_gid gid;

	switch (e->event) {
	case RDMA_CM_EVENT_MULTICAST_ERROR:
		out->group = (uintptr_t)p->private_data;
		return;
	case RDMA_CM_EVENT_MULTICAST_JOIN:
		out->group = (uintptr_t)p->private_data;
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		copy_private(out, p->private_data, p->private_data_len);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_UNREACHABLE: /* also a refusal */
		copy_private(out, p->private_data, p->private_data_len);
		return;
	default:
		return;
	}
	out->ud.qpn = p->qp_num;
	out->ud.qkey = p->qkey;
	out->ud.port = a->port_num;
	out->ud.lid = a->dlid;
	out->ud.sl = a->sl;
	out->ud.path_bits = a->src_path_bits;
	out->ud.static_rate = a->static_rate;
	out->ud.global = a->is_global;
	if (!a->is_global)
		return;
	memcpy(out->ud.dgid, a->grh.dgid.raw, sizeof out->ud.dgid);
	out->ud.flow_label = a->grh.flow_label;
	out->ud.traffic_class = a->grh.traffic_class;
	out->ud.hop_limit = a->grh.hop_limit;
	if (e->id->verbs && !ibv_query_gid(e->id->verbs, a->port_num, a->grh.sgid_index, &gid))
		memcpy(out->ud.sgid, gid.raw, sizeof out->ud.sgid);
}

int rdmacore_next_event(rdmacore_ec *ec, rdmacore_event *out)
{
	struct rdma_cm_event *e;
	int rc;

	memset(out, 0, offsetof(rdmacore_event, private_data));
	do {
		errno = 0;
		rc = rdma_get_cm_event(EC(ec), &e);
	} while (rc && errno == EINTR);
	if (rc)
		return rdmacore_errno(EIO);
	out->kind = kind(e->event);
	/* Of what fails in librdmacm itself the status is -1, which is not EPERM, and errno tells. */
	out->status = e->status == -1 && errno ? -errno : e->status;
	out->token = (uintptr_t)e->id->context;
	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		out->request = (uintptr_t)e->id;
		out->token = (uintptr_t)e->listen_id->context;
	}
	if (e->id->qp_type == IBV_QPT_UD) {
		copy_ud(out, e);
		rdma_ack_cm_event(e);
		return 0;
	}
	switch (e->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_DISCONNECTED:
		out->responder_resources = e->param.conn.responder_resources;
		out->initiator_depth = e->param.conn.initiator_depth;
		out->flow_control = e->param.conn.flow_control;
		out->retry_count = e->param.conn.retry_count;
		out->rnr_retry_count = e->param.conn.rnr_retry_count;
		out->srq = e->param.conn.srq;
		copy_private(out, e->param.conn.private_data, e->param.conn.private_data_len);
		break;
	default:
		break;
	}
	rdma_ack_cm_event(e);
	return 0;
}

rdmacore_ref rdmacore_create_id(rdmacore_ec *ec, int space, uint64_t token)
{
	rdmacore_ref r = {NULL, 0, -1};
	struct rdma_cm_id *id;

	errno = 0;
	if (rdma_create_id(EC(ec), &id, (void *)(uintptr_t)token, space))
		r.err = rdmacore_errno(ENODEV);
	else
		r.p = id;
	return r;
}

int rdmacore_destroy_id(rdmacore_id *id)
{
	errno = 0;
	return result(rdma_destroy_id(ID(id)));
}

int rdmacore_move_id(rdmacore_id *id, rdmacore_ec *ec, uint64_t token)
{
	ID(id)->context = (void *)(uintptr_t)token;
	errno = 0;
	return result(rdma_migrate_id(ID(id), EC(ec)));
}

int rdmacore_set_tos(rdmacore_id *id, int tos)
{
	uint8_t v = tos;

	errno = 0;
	return result(rdma_set_option(ID(id), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &v, sizeof v));
}

int rdmacore_set_afonly(rdmacore_id *id, int on)
{
	errno = 0;
	return result(rdma_set_option(ID(id), RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof on));
}

int rdmacore_bind(rdmacore_id *id, const rdmacore_addr *addr)
{
	union address a;

	errno = 0;
	return result(rdma_bind_addr(ID(id), to_sockaddr(&a, addr)));
}

int rdmacore_resolve_addr(rdmacore_id *id, const rdmacore_addr *local, const rdmacore_addr *remote, int ms)
{
	union address l, r;

	errno = 0;
	return result(rdma_resolve_addr(ID(id), to_sockaddr(&l, local), to_sockaddr(&r, remote), ms));
}

int rdmacore_resolve_route(rdmacore_id *id, int ms)
{
	errno = 0;
	return result(rdma_resolve_route(ID(id), ms));
}

int rdmacore_listen(rdmacore_id *id, int backlog)
{
	errno = 0;
	return result(rdma_listen(ID(id), backlog));
}

int rdmacore_info(rdmacore_id *p, rdmacore_id_info *out)
{
	struct rdma_cm_id *id = ID(p);

	memset(out, 0, sizeof *out);
	if (id->verbs)
		strncpy(out->device, ibv_get_device_name(id->verbs->device), CORE_NAME - 1);
	out->port = id->port_num;
	from_sockaddr(&out->local, &id->route.addr.src_addr);
	from_sockaddr(&out->remote, &id->route.addr.dst_addr);
	out->local.port = ntohs(rdma_get_src_port(id));
	out->remote.port = ntohs(rdma_get_dst_port(id));
	return 0;
}

rdmacore_ctx *rdmacore_context(rdmacore_id *id) { return (rdmacore_ctx *)ID(id)->verbs; }

static void to_param(struct rdma_conn_param *p, const rdmacore_param *in)
{
	memset(p, 0, sizeof *p);
	p->private_data = in->private_len ? in->private_data : NULL;
	p->private_data_len = in->private_len;
	p->responder_resources = in->responder_resources;
	p->initiator_depth = in->initiator_depth;
	p->flow_control = in->flow_control;
	p->retry_count = in->retry_count;
	p->rnr_retry_count = in->rnr_retry_count;
	p->srq = in->srq;
	p->qp_num = in->qpn;
}

int rdmacore_connect(rdmacore_id *id, const rdmacore_param *in)
{
	struct rdma_conn_param p;

	to_param(&p, in);
	errno = 0;
	return result(rdma_connect(ID(id), &p));
}

int rdmacore_accept(rdmacore_id *id, const rdmacore_param *in)
{
	struct rdma_conn_param p;

	to_param(&p, in);
	errno = 0;
	return result(rdma_accept(ID(id), &p));
}

int rdmacore_establish(rdmacore_id *id)
{
	errno = 0;
	return result(rdma_establish(ID(id)));
}

int rdmacore_reject(rdmacore_id *id, const uint8_t *data, int len)
{
	errno = 0;
	return result(rdma_reject(ID(id), data, len));
}

int rdmacore_disconnect(rdmacore_id *id)
{
	errno = 0;
	return result(rdma_disconnect(ID(id)));
}

int rdmacore_comm_est(rdmacore_id *id)
{
	errno = 0;
	return result(rdma_notify(ID(id), IBV_EVENT_COMM_EST));
}

int rdmacore_lookup(rdmacore_id *id, const uint8_t *data, int len)
{
	struct rdma_conn_param p;

	memset(&p, 0, sizeof p);
	p.private_data = data;
	p.private_data_len = len;
	errno = 0;
	return result(rdma_connect(ID(id), &p));
}

int rdmacore_reply(rdmacore_id *id, uint32_t qpn, const uint8_t *data, int len)
{
	struct rdma_conn_param p;

	memset(&p, 0, sizeof p);
	p.private_data = data;
	p.private_data_len = len;
	p.qp_num = qpn;
	errno = 0;
	return result(rdma_accept(ID(id), &p));
}

int rdmacore_join(rdmacore_id *id, const rdmacore_addr *group, int send_only, uint64_t token)
{
	struct rdma_cm_join_mc_attr_ex attr;
	union address a;
	struct sockaddr *sa = to_sockaddr(&a, group);

	if (!sa)
		return -EINVAL;
	memset(&attr, 0, sizeof attr);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = send_only ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER;
	attr.addr = sa;
	errno = 0;
	return result(rdma_join_multicast_ex(ID(id), &attr, (void *)(uintptr_t)token));
}

int rdmacore_leave(rdmacore_id *id, const rdmacore_addr *group)
{
	union address a;
	struct sockaddr *sa = to_sockaddr(&a, group);

	if (!sa)
		return -EINVAL;
	errno = 0;
	return result(rdma_leave_multicast(ID(id), sa));
}

static int modify(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
	int rc = ibv_modify_qp(qp, a, mask);

	return rc < 0 ? rdmacore_errno(EIO) : -rc;
}

int rdmacore_qp_init_state(rdmacore_id *id, rdmacore_qp *qp, int atomics)
{
	struct ibv_qp_attr a;
	int mask = 0;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	errno = 0;
	if (rdma_init_qp_attr(ID(id), &a, &mask))
		return failed();
	/* What peers may do is for each region to say. */
	if (mask & IBV_QP_ACCESS_FLAGS)
		a.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				     (atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
	return modify((struct ibv_qp *)qp, &a, mask);
}

int rdmacore_qp_datagrams(rdmacore_id *id, rdmacore_qp *p)
{
	struct ibv_qp *qp = (struct ibv_qp *)p;
	struct ibv_qp_attr a;
	int mask = 0, rc;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	errno = 0;
	if (rdma_init_qp_attr(ID(id), &a, &mask))
		return failed();
	rc = modify(qp, &a, mask);
	if (rc)
		return rc;
	a.qp_state = IBV_QPS_RTR;
	rc = modify(qp, &a, IBV_QP_STATE);
	if (rc)
		return rc;
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = 0;
	return modify(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

int rdmacore_qp_init_alone(rdmacore_qp *qp, int port, int atomics)
{
	struct ibv_qp_attr a;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	a.port_num = port;
	a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | (atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
	errno = 0;
	return modify((struct ibv_qp *)qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int rdmacore_qp_connect(rdmacore_id *id, rdmacore_qp *qp, rdmacore_connect_attr *c)
{
	struct ibv_qp_attr a;
	int mask = 0, rc;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTR;
	errno = 0;
	if (rdma_init_qp_attr(ID(id), &a, &mask))
		return failed();
	if (mask & IBV_QP_MIN_RNR_TIMER)
		a.min_rnr_timer = c->min_rnr_timer;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC && c->max_dest_rd_atomic >= 0)
		a.max_dest_rd_atomic = c->max_dest_rd_atomic;
	if (mask & IBV_QP_AV && a.ah_attr.is_global && c->traffic_class)
		a.ah_attr.grh.traffic_class = c->traffic_class;
	c->path_mtu = a.path_mtu;
	rc = modify((struct ibv_qp *)qp, &a, mask);
	if (rc)
		return rc;
	memset(&a, 0, sizeof a);
	mask = 0;
	a.qp_state = IBV_QPS_RTS;
	errno = 0;
	if (rdma_init_qp_attr(ID(id), &a, &mask))
		return failed();
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC && c->max_rd_atomic >= 0)
		a.max_rd_atomic = c->max_rd_atomic;
	c->max_rd_atomic = a.max_rd_atomic;
	return modify((struct ibv_qp *)qp, &a, mask);
}

#endif
