//! Images: one plane of floating point numbers in the host's memory.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_standin_streams::object::{self, Handle, Object, get};

use crate::{Code, INVALID_ARGUMENT, vpi, vpi_void, write};

pub(crate) struct Image {
    width: i32,
    height: i32,
    pixels: Mutex<Vec<f32>>,
}

impl Object for Image {
    const TAG: u64 = u64::from_le_bytes(*b"vpi imge");
    const INVALID: Code = INVALID_ARGUMENT;
}

impl Image {
    pub(crate) fn pixels(&self) -> MutexGuard<'_, Vec<f32>> {
        self.pixels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn width(&self) -> u64 {
        u64::try_from(self.width).unwrap_or(0)
    }
}

pub(crate) type ImageHandle = *const Handle<Image>;

const MAX_PLANES: usize = 6;
/// `VPI_IMAGE_BUFFER_HOST_PITCH_LINEAR`.
const HOST: i32 = 1;

/// `VPIImagePlanePitchLinear`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Plane {
    pixel_type: u64,
    width: i32,
    height: i32,
    pitch: i32,
    data: *mut c_void,
}

/// The beginning of `VPIImageData`.
#[repr(C)]
pub(crate) struct ImageData {
    buffer_type: i32,
    format: u64,
    planes: i32,
    plane: [Plane; MAX_PLANES],
}

vpi! {
    fn vpiImageCreate(width: i32, height: i32, _format: u64, _flags: u64, out: *mut ImageHandle) {
        let pixels = usize::try_from(i64::from(width) * i64::from(height)).map_err(|_| INVALID_ARGUMENT)?;
        // SAFETY: as the vendor's headers demand.
        unsafe { object::create(out, Image { width, height, pixels: Mutex::new(vec![0.0; pixels]) }) }
    }
    fn vpiImageLockData(image: ImageHandle, _mode: i32, kind: i32, data: *mut ImageData) {
        // SAFETY: as the vendor's headers demand.
        let image = unsafe { get(image) }?;
        if kind != HOST {
            return Err(INVALID_ARGUMENT);
        }
        let none = Plane { pixel_type: 0, width: 0, height: 0, pitch: 0, data: std::ptr::null_mut() };
        let (width, height) = (image.object.width, image.object.height);
        let pixels = image.object.pixels().as_mut_ptr().cast();
        let mut plane = [none; MAX_PLANES];
        plane[0] = Plane { width, height, pitch: width * 4, data: pixels, ..none };
        // SAFETY: as the vendor's headers demand.
        unsafe { write(data, ImageData { buffer_type: HOST, format: 0, planes: 1, plane }) }
    }
    fn vpiImageUnlock(image: ImageHandle) {
        // SAFETY: as the vendor's headers demand.
        unsafe { get(image) }.map(drop)
    }
}

vpi_void! {
    fn vpiImageDestroy(image: ImageHandle) {
        // SAFETY: as the vendor's headers demand.
        let _ = unsafe { object::destroy(image) };
    }
}
