/* The fast path: one crossing for a batch each way. */
#include "lib.h"

#ifdef CORE_HEADERS

#include "native.h"

#include <arpa/inet.h>
#include <sched.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(rdmacore_sge) == sizeof(struct ibv_sge) &&
	       offsetof(rdmacore_sge, addr) == offsetof(struct ibv_sge, addr) &&
	       offsetof(rdmacore_sge, length) == offsetof(struct ibv_sge, length) &&
	       offsetof(rdmacore_sge, lkey) == offsetof(struct ibv_sge, lkey),
	       "entries are handed on as they are");

static void flatten(struct ibv_send_wr *w, const rdmacore_send *s)
{
	w->wr_id = s->id;
	w->send_flags = rdmacore_send_flags(s) | (s->inlined ? IBV_SEND_INLINE : 0);
	w->imm_data = 0;
	switch (s->op) {
	case CORE_SEND:
		w->opcode = IBV_WR_SEND;
		break;
	case CORE_SEND_IMM:
		w->opcode = IBV_WR_SEND_WITH_IMM;
		w->imm_data = htonl(s->imm);
		break;
	case CORE_SEND_INV:
		w->opcode = IBV_WR_SEND_WITH_INV;
		w->invalidate_rkey = s->imm;
		break;
	case CORE_WRITE:
		w->opcode = IBV_WR_RDMA_WRITE;
		break;
	case CORE_WRITE_IMM:
		w->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		w->imm_data = htonl(s->imm);
		break;
	case CORE_READ:
		w->opcode = IBV_WR_RDMA_READ;
		break;
	case CORE_CMP_SWAP:
		w->opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		break;
	case CORE_FETCH_ADD:
		w->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		break;
	}
	switch (s->op) {
	case CORE_SEND:
	case CORE_SEND_IMM:
	case CORE_SEND_INV:
		if (s->ah) {
			w->wr.ud.ah = (struct ibv_ah *)(uintptr_t)s->ah;
			w->wr.ud.remote_qpn = s->remote_qpn;
			w->wr.ud.remote_qkey = s->remote_qkey;
		}
		break;
	case CORE_CMP_SWAP:
		w->wr.atomic.remote_addr = s->remote_addr;
		w->wr.atomic.rkey = s->rkey;
		w->wr.atomic.compare_add = s->compare;
		w->wr.atomic.swap = s->swap_add;
		break;
	case CORE_FETCH_ADD:
		w->wr.atomic.remote_addr = s->remote_addr;
		w->wr.atomic.rkey = s->rkey;
		w->wr.atomic.compare_add = s->swap_add;
		w->wr.atomic.swap = 0;
		break;
	default:
		w->wr.rdma.remote_addr = s->remote_addr;
		w->wr.rdma.rkey = s->rkey;
		break;
	}
}

/* Posts n requests that struct ibv_send_wr has, and moves sge and data behind what is theirs. */
static int post_plain(rdmacore_qp *qp, const rdmacore_send *in, int n, rdmacore_sge **sges, uint8_t **datas, int32_t *err)
{
	struct ibv_send_wr wr[CORE_BATCH], *bad = NULL;
	struct ibv_sge whole[CORE_BATCH]; /* of inline bytes */
	rdmacore_sge *sge = *sges;
	uint8_t *data = *datas;
	int rc;

	for (int i = 0; i < n; i++) {
		struct ibv_send_wr *w = &wr[i];

		flatten(w, &in[i]);
		w->next = i + 1 < n ? w + 1 : NULL;
		if (in[i].inlined) {
			whole[i].addr = (uintptr_t)data;
			whole[i].length = in[i].inline_len;
			whole[i].lkey = 0;
			data += in[i].inline_len;
			w->sg_list = &whole[i];
			w->num_sge = in[i].inline_len > 0;
		} else {
			w->sg_list = (struct ibv_sge *)sge;
			w->num_sge = in[i].nsge;
			sge += in[i].nsge;
		}
	}
	*sges = sge;
	*datas = data;
	rc = ibv_post_send((struct ibv_qp *)qp, wr, &bad);
	if (rc == 0)
		return n;
	*err = rc < 0 ? -rc : rc;
	return bad ? (int)(bad - wr) : 0;
}

int rdmacore_post_send(rdmacore_qp *qp, const rdmacore_send *in, int n, rdmacore_sge *sge, uint8_t *data, int32_t *err)
{
	int done = 0;

	*err = 0;
	while (done < n && *err == 0) {
		int native = rdmacore_is_native(&in[done]), k = 1;

		while (done + k < n && rdmacore_is_native(&in[done + k]) == native)
			k++;
		if (!native) {
			done += post_plain(qp, &in[done], k, &sge, &data, err);
			continue;
		}
		*err = rdmacore_native_post((struct ibv_qp *)qp, &in[done], k, &data);
		if (*err < 0)
			*err = -*err;
		if (*err == 0)
			done += k;
	}
	return done;
}

typedef int post_recv_fn(void *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

static inline int post_recv(post_recv_fn *post, void *q, const rdmacore_recv *in, int n, rdmacore_sge *sge, int32_t *err)
{
	struct ibv_recv_wr wr[CORE_BATCH], *bad = NULL;
	int rc;

	*err = 0;
	for (int i = 0; i < n; i++) {
		wr[i].wr_id = in[i].id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = (struct ibv_sge *)sge;
		wr[i].num_sge = in[i].nsge;
		sge += in[i].nsge;
	}
	rc = post(q, wr, &bad);
	if (rc == 0)
		return n;
	*err = rc < 0 ? -rc : rc;
	return bad ? (int)(bad - wr) : 0;
}

static int to_qp(void *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return ibv_post_recv(q, wr, bad);
}

static int to_srq(void *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return ibv_post_srq_recv(q, wr, bad);
}

int rdmacore_post_recv(rdmacore_qp *qp, const rdmacore_recv *in, int n, rdmacore_sge *sge, int32_t *err)
{
	return post_recv(to_qp, qp, in, n, sge, err);
}

int rdmacore_post_srq(rdmacore_srq *srq, const rdmacore_recv *in, int n, rdmacore_sge *sge, int32_t *err)
{
	return post_recv(to_srq, srq, in, n, sge, err);
}

int rdmacore_arm(rdmacore_cq *cq)
{
	int rc;

	errno = 0;
	rc = ibv_req_notify_cq((struct ibv_cq *)cq, 0);
	return rc < 0 ? rdmacore_errno(EIO) : -rc;
}

static int opcode(enum ibv_wc_opcode op)
{
	switch ((int)op) {
	case 8: /* IBV_WC_FLUSH and IBV_WC_ATOMIC_WRITE, see native.c */
		return CORE_WC_FLUSH;
	case 9:
		return CORE_WC_ATOMIC_WRITE;
	case IBV_WC_SEND:
		return CORE_WC_SEND;
	case IBV_WC_RDMA_WRITE:
		return CORE_WC_WRITE;
	case IBV_WC_RDMA_READ:
		return CORE_WC_READ;
	case IBV_WC_COMP_SWAP:
		return CORE_WC_CMP_SWAP;
	case IBV_WC_FETCH_ADD:
		return CORE_WC_FETCH_ADD;
	case IBV_WC_RECV:
		return CORE_WC_RECV;
	case IBV_WC_RECV_RDMA_WITH_IMM:
		return CORE_WC_RECV_IMM;
	default:
		return 0;
	}
}

static int poll_once(rdmacore_cq *cq, rdmacore_wc *out, int n, int ud)
{
	struct ibv_wc wc[CORE_BATCH];
	int got;

	got = ibv_poll_cq((struct ibv_cq *)cq, n < CORE_BATCH ? n : CORE_BATCH, wc);
	if (got < 0)
		return rdmacore_errno(EIO);
	for (int i = 0; i < got; i++) {
		const struct ibv_wc *w = &wc[i];
		rdmacore_wc *o = &out[i];

		memset(o, 0, sizeof *o);
		o->id = w->wr_id;
		o->status = w->status;
		o->qpn = w->qp_num;
		o->vendor_err = w->vendor_err;
		if (w->status != IBV_WC_SUCCESS)
			continue;
		o->op = opcode(w->opcode);
		o->byte_len = w->byte_len;
		if (!(w->opcode & IBV_WC_RECV))
			continue;
		if (w->wc_flags & IBV_WC_WITH_IMM) {
			o->flags |= CORE_WC_WITH_IMM;
			o->imm = ntohl(w->imm_data);
		}
		if (w->wc_flags & IBV_WC_WITH_INV) {
			o->flags |= CORE_WC_WITH_INV;
			o->imm = w->invalidated_rkey;
		}
		if (!ud)
			continue;
		if (w->wc_flags & IBV_WC_GRH)
			o->flags |= CORE_WC_GRH;
		o->src_qp = w->src_qp;
		o->slid = w->slid;
		o->sl = w->sl;
		o->path_bits = w->dlid_path_bits;
	}
	return got;
}

static int64_t nanoseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

enum { LOOKS = 8 }; /* between two looks at the clock, which may cost as much as all of them */

int rdmacore_poll(rdmacore_cq *cq, rdmacore_wc *out, int n, int ud, int spin, int arm)
{
	int got, rc;

	errno = 0;
	got = poll_once(cq, out, n, ud);
	if (got == 0 && spin > 0) {
		int64_t end = nanoseconds() + spin;

		do {
			for (int i = 0; got == 0 && i < LOOKS; i++)
				got = poll_once(cq, out, n, ud);
		} while (got == 0 && nanoseconds() < end);
		if (got == 0) {
			sched_yield(); /* the one who is to answer may be waiting for this very processor */
			got = poll_once(cq, out, n, ud);
		}
	}
	if (got != 0 || !arm)
		return got;
	rc = rdmacore_arm(cq);
	if (rc < 0)
		return rc;
	got = poll_once(cq, out, n, ud);
	return got < 0 ? got : got | CORE_ARMED;
}

#endif
