/* Order, events and errors as the vendor's header documents them. Prints the results. */
#include "device.h"

int main(void) {
    xsim_device_t device;
    xsim_queue_t first, second;
    xsim_event_t event;
    uint64_t finished;
    must(xsim_open(NULL, &device), "open");
    must(xsim_queue_create(device, &first), "create");
    must(xsim_queue_create(device, &second), "create");
    must(xsim_event_create(&event), "event");
    printf("never recorded: %d\n", xsim_event_query(event));

    must(xsim_launch(first, 30000000), "launch");
    must(xsim_event_record(event, first), "record");
    must(xsim_queue_wait_event(second, event), "wait");
    must(xsim_launch(second, 1000), "launch");
    printf("at once: %d %d %d\n", xsim_query(first), xsim_query(second), xsim_event_query(event));
    must(xsim_synchronize(second), "synchronize");
    must(xsim_event_synchronize(event), "synchronize");
    must(xsim_finished(first, &finished), "finished");
    printf("afterwards: %d %d, %d\n", xsim_query(first), xsim_event_query(event), (int)finished);

    /* The text is valid until the next failure, so it is read right after the call. */
    xsim_result result = xsim_launch(NULL, 1);
    printf("nothing: %d %s\n", result, xsim_last_error());
    printf("wrong kind: %d\n", xsim_launch((xsim_queue_t)device, 1));
    result = xsim_open("/no/such/place", &device);
    printf("no device: %d %s\n", result, xsim_last_error());
    must(xsim_event_destroy(event), "destroy");
    must(xsim_queue_destroy(first), "destroy");
    must(xsim_queue_destroy(second), "destroy");
    return 0;
}
