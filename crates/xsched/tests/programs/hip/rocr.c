/* Initializes AMD's real ROCr, uses a signal and shuts ROCr down, twice; prints the result of each call. */
#include <stdint.h>
#include <stdio.h>

int hsa_init(void);
int hsa_shut_down(void);
int hsa_iterate_agents(int (*)(uint64_t, void *), void *);
int hsa_agent_get_info(uint64_t, int, void *);
int hsa_queue_create(uint64_t, uint32_t, uint32_t, void *, void *, uint32_t, uint32_t, void **);
int hsa_signal_create(int64_t, uint32_t, const uint64_t *, uint64_t *);
int hsa_signal_destroy(uint64_t);
int64_t hsa_signal_load_scacquire(uint64_t);
void hsa_signal_store_relaxed(uint64_t, int64_t);
void hsa_signal_store_screlease(uint64_t, int64_t);

static int visit(uint64_t agent, void *count) {
    uint32_t kind = 9;
    void *queue = NULL;
    ++*(int *)count;
    int status = hsa_agent_get_info(agent, 17, &kind);
    printf("agent %d, kind %u, queue %x\n", status, kind, hsa_queue_create(agent, 64, 0, NULL, NULL, 0, 0, &queue));
    return 0;
}

int main(void) {
    for (int n = 0; n < 2; n++) {
        int agents = 0;
        uint64_t signal = 0;
        int status = hsa_init();
        printf("hsa_init %x\n", status);
        if (status != 0) return 0;
        status = hsa_iterate_agents(visit, &agents);
        printf("agents %d, %d\n", status, agents);
        status = hsa_signal_create(1, 0, NULL, &signal);
        hsa_signal_store_relaxed(signal, 17);
        printf("signal %d, %lld", status, (long long)hsa_signal_load_scacquire(signal));
        hsa_signal_store_screlease(signal, 23);
        printf(", %lld", (long long)hsa_signal_load_scacquire(signal));
        printf(", %d\n", hsa_signal_destroy(signal));
        printf("hsa_shut_down %x\n", hsa_shut_down());
    }
    return 0;
}
