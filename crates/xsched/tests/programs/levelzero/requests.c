/*
 * Serves requests of KERNELS kernels of KERNEL_US each, PAUSE_MS apart. Prints the latency of each in microseconds.
 *
 *   requests REQUESTS KERNELS KERNEL_US PAUSE_MS immediate|regular
 */
#include "ze.h"

int main(int argc, char **argv) {
    if (argc < 6) return 64;
    long requests = atol(argv[1]), kernels = atol(argv[2]), pause_ms = atol(argv[4]);
    int is_immediate = strcmp(argv[5], "immediate") == 0;
    open_device();
    uint64_t *counter = new_memory(sizeof *counter), expected = 0;
    *counter = 0;
    ze_kernel_handle_t kernel = new_increment((uint64_t)atol(argv[3]), counter);
    ze_command_queue_handle_t queue = NULL;
    ze_command_list_handle_t list;
    ze_event_handle_t done = NULL;
    if (is_immediate) {
        list = new_immediate_list(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
        done = new_event();
    } else {
        queue = new_queue(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
        list = new_list();
        launch(list, kernel, NULL, 0, NULL);
        must(CALL(zeCommandListClose)(list), "close");
    }
    printf("ready\n");
    fflush(stdout);
    for (long n = 0; n < requests; n++) {
        if (pause_ms > 0) usleep((useconds_t)pause_ms * 1000);
        double begun = now_us();
        for (long k = 0; k < kernels; k++) {
            if (is_immediate) launch(list, kernel, k + 1 == kernels ? done : NULL, 0, NULL);
            else execute(queue, list, NULL);
        }
        if (is_immediate) {
            must(CALL(zeEventHostSynchronize)(done, UINT64_MAX), "event");
            must(CALL(zeEventHostReset)(done), "reset");
        } else {
            must(CALL(zeCommandQueueSynchronize)(queue, UINT64_MAX), "synchronize");
        }
        expected += (uint64_t)kernels;
        if (*counter != expected) {
            printf("wrong\n");
            return 71;
        }
        printf("%.0f\n", now_us() - begun);
        fflush(stdout);
    }
    return 0;
}
