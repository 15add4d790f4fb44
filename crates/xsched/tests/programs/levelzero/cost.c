/*
 * Prints how long a launch takes on the host, in nanoseconds, ROUNDS times: on an immediate list, on one with an event for each command, and on
 * a queue. The device does not run meanwhile: the first command waits for the program.
 *
 *   cost ROUNDS
 */
#include "ze.h"

enum { LAUNCHES = 200 };

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    open_device();
    ze_kernel_handle_t kernel = new_kernel("spin");
    ze_command_list_handle_t immediate = new_immediate_list(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    ze_command_queue_handle_t queue = new_queue(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    ze_event_handle_t start = new_event(), end = new_event(), events[2] = {new_event(), new_event()};
    ze_command_list_handle_t waiting = new_list(), list = new_list();
    must(CALL(zeCommandListAppendWaitOnEvents)(waiting, 1, &start), "wait");
    must(CALL(zeCommandListClose)(waiting), "close");
    launch(list, kernel, NULL, 0, NULL);
    must(CALL(zeCommandListClose)(list), "close");
    printf("ready\n");
    for (long round = 0; round < atol(argv[1]); round++) {
        double took[3];
        for (int way = 0; way < 3; way++) {
            if (way < 2) must(CALL(zeCommandListAppendWaitOnEvents)(immediate, 1, &start), "wait");
            else execute(queue, waiting, NULL);
            double begun = now_us();
            for (int n = 0; n < LAUNCHES; n++) {
                if (way == 0) launch(immediate, kernel, NULL, 0, NULL);
                else if (way == 1) launch(immediate, kernel, events[n % 2], n > 0, &events[1 - n % 2]);
                else execute(queue, list, NULL);
            }
            took[way] = (now_us() - begun) * 1000 / LAUNCHES;
            if (way < 2) must(CALL(zeCommandListAppendBarrier)(immediate, end, 0, NULL), "barrier");
            must(CALL(zeEventHostSignal)(start), "signal");
            if (way < 2) must(CALL(zeEventHostSynchronize)(end, UINT64_MAX), "event");
            else must(CALL(zeCommandQueueSynchronize)(queue, UINT64_MAX), "synchronize");
            ze_event_handle_t all[] = {start, end, events[0], events[1]};
            for (int n = 0; n < 4; n++) must(CALL(zeEventHostReset)(all[n]), "reset");
        }
        printf("%.0f %.0f %.0f\n", took[0], took[1], took[2]);
        fflush(stdout);
    }
    return 0;
}
