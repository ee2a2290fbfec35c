/*
 * FLUSH and ATOMIC WRITE (IBTA annex A19), which struct ibv_send_wr does not have: they are posted with ibv_wr_start(3) and
 * what follows. Headers before rdma-core 44 lack the one and before 45 the other, as enumerators, which the preprocessor cannot see. So
 * the values stand here; they are the kernel's too (rdma/ib_user_verbs.h), as are the places of the functions in struct ibv_qp_ex, which
 * grows at its end. What the headers that were built with do not know, a library may.
 */
#include "lib.h"

#ifdef CORE_HEADERS

#include "native.h"

#include <string.h>

typedef void wr_atomic_write(struct ibv_qp_ex *, uint32_t rkey, uint64_t addr, const void *value);
typedef void wr_flush(struct ibv_qp_ex *, uint32_t rkey, uint64_t addr, size_t len, uint8_t type, uint8_t level);

/* What follows the member wr_abort. The structure is as long as that in the library if the library made the queue pair for these operations. */
struct more {
	wr_atomic_write *atomic_write;
	wr_flush *flush;
};

static const struct more *more(struct ibv_qp_ex *ex)
{
	return (const void *)(&ex->wr_abort + 1);
}

enum { QP_EX_WITH_FLUSH = 1 << 11, QP_EX_WITH_ATOMIC_WRITE = 1 << 12 };

int rdmacore_native_caps(const struct ibv_device_attr_ex *a)
{
	const uint64_t all = 1ULL << 38 | 1ULL << 39 | 1ULL << 40; /* both placement types, and ATOMIC WRITE */

	return rdmacore_has_qp_ex() && (a->device_cap_flags_ex & all) == all;
}

int rdmacore_native_try(struct ibv_context *c)
{
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_cq *cq = pd ? ibv_create_cq(c, 1, NULL, NULL, 0) : NULL;
	struct ibv_qp *qp = NULL;

	if (cq) {
		struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};

		a.cap.max_send_wr = a.cap.max_recv_wr = a.cap.max_send_sge = a.cap.max_recv_sge = 1;
		qp = rdmacore_native_qp(pd, &a);
	}
	if (qp)
		ibv_destroy_qp(qp);
	if (cq)
		ibv_destroy_cq(cq);
	if (pd)
		ibv_dealloc_pd(pd);
	return qp != NULL;
}

struct ibv_qp *rdmacore_native_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct ibv_qp_init_attr_ex ex;
	struct ibv_qp *qp;

	memset(&ex, 0, sizeof ex);
	ex.qp_context = a->qp_context;
	ex.send_cq = a->send_cq;
	ex.recv_cq = a->recv_cq;
	ex.srq = a->srq;
	ex.cap = a->cap;
	ex.qp_type = a->qp_type;
	ex.pd = pd;
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	ex.send_ops_flags = QP_EX_WITH_FLUSH | QP_EX_WITH_ATOMIC_WRITE;
	qp = ibv_create_qp_ex(pd->context, &ex);
	if (qp)
		a->cap = ex.cap;
	return qp;
}

int rdmacore_native_post(struct ibv_qp *qp, const rdmacore_send *in, int n, uint8_t **data)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

	if (!ex)
		return EOPNOTSUPP;
	ibv_wr_start(ex);
	for (int i = 0; i < n; i++) {
		ex->wr_id = in[i].id;
		ex->wr_flags = rdmacore_send_flags(&in[i]);
		if (in[i].op == CORE_ATOMIC_WRITE) {
			more(ex)->atomic_write(ex, in[i].rkey, in[i].remote_addr, *data);
			*data += in[i].inline_len;
		} else {
			more(ex)->flush(ex, in[i].rkey, in[i].remote_addr, in[i].flush_length, in[i].flush_type, in[i].flush_level);
		}
	}
	return ibv_wr_complete(ex);
}

#endif
