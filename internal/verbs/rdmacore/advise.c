/* Advice on memory (ibv_advise_mr(3)), which on-demand paging is for. */
#include "lib.h"

#ifdef CORE_HEADERS

int rdmacore_advise_mr(rdmacore_pd *pd, int advice, uint64_t addr, uint64_t len, uint32_t lkey)
{
#ifdef IBV_ADVISE_MR_FLAG_FLUSH
	const uint64_t most = 1ULL << 31; /* a length has 32 bits */
	int err = 0;

	while (len && !err) {
		struct ibv_sge sge = {.addr = addr, .length = (uint32_t)(len < most ? len : most), .lkey = lkey};

		err = ibv_advise_mr((struct ibv_pd *)pd, (enum ibv_advise_mr_advice)advice, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1);
		addr += sge.length;
		len -= sge.length;
	}
	return -err;
#else
	return -EOPNOTSUPP; /* headers before rdma-core 23 */
#endif
}

#endif
