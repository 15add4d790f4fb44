//! Generates the gRPC clients and servers of `src/proto.rs` from the methods below. No protobuf compiler is needed.

use tonic_build::manual::{Builder, Method, Service};

const CODEC: &str = "tonic_prost::ProstCodec";

fn method(route: &str, name: &str, input: &str, output: &str) -> Method {
    let builder = Method::builder().name(name).route_name(route).codec_path(CODEC);
    let builder =
        builder.input_type(format!("crate::proto::{input}")).output_type(format!("crate::proto::{output}"));
    if route == "ListAndWatch" { builder.server_streaming().build() } else { builder.build() }
}

fn main() {
    let registration = Service::builder()
        .name("Registration")
        .package("v1beta1")
        .method(method("Register", "register", "RegisterRequest", "Empty"))
        .build();
    let device_plugin = Service::builder()
        .name("DevicePlugin")
        .package("v1beta1")
        .method(method("GetDevicePluginOptions", "get_device_plugin_options", "Empty", "DevicePluginOptions"))
        .method(method("ListAndWatch", "list_and_watch", "Empty", "ListAndWatchResponse"))
        .method(method(
            "GetPreferredAllocation",
            "get_preferred_allocation",
            "PreferredAllocationRequest",
            "PreferredAllocationResponse",
        ))
        .method(method("Allocate", "allocate", "AllocateRequest", "AllocateResponse"))
        .method(method(
            "PreStartContainer",
            "pre_start_container",
            "PreStartContainerRequest",
            "PreStartContainerResponse",
        ))
        .build();
    let pod_resources = Service::builder()
        .name("PodResourcesLister")
        .package("v1")
        .method(method("List", "list", "ListPodResourcesRequest", "ListPodResourcesResponse"))
        .build();
    Builder::new().compile(&[registration, device_plugin, pod_resources]);
    println!("cargo::rerun-if-changed=build.rs");
}
