/* Advice on a range of a length that is given, to a driver that writes down what it gets, and to one that takes none. */
#include "../advise.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int calls;
static int left; /* calls that succeed */

static int advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sg, uint32_t n)
{
	(void)pd;
	printf("%d/%u: %u of [%#llx, +%u) key %x\n", (int)advice, flags, n, (unsigned long long)sg->addr, sg->length, sg->lkey);
	calls++;
	return left-- > 0 ? 0 : EFAULT;
}

int main(int argc, char **argv)
{
	static struct verbs_context v;
	static struct ibv_pd pd;
	int err;

	if (argc != 3)
		return 2;
	left = atoi(argv[2]);
	pd.context = &v.context;
	if (left >= 0) { /* a driver of today's */
		v.sz = sizeof v;
		v.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
		v.advise_mr = advise;
	}
	err = rdmacore_advise_mr((rdmacore_pd *)&pd, 1, 0x7000, strtoull(argv[1], NULL, 0), 0xabc);
	printf("%s\n", err ? strerror(-err) : "ok");
	return 0;
}
