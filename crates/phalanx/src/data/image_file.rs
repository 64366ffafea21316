//! Image files. Decoding needs the feature `images`.

use super::{ColorMode, Pixels};
use crate::error::{Error, Result};
use std::path::Path;

/// Maximum length of a side in pixels, of a file and of the target size.
pub(super) const MAX_SIDE: u32 = 16_384;

/// A decoded image.
pub(super) struct Image {
    pub height: u32,
    pub width: u32,
    /// One byte per channel of a pixel.
    pub bytes: Vec<u8>,
}

/// Fails in a build that cannot decode images.
pub(super) fn check_support() -> Result<()> {
    match cfg!(feature = "images") {
        true => Ok(()),
        false => Err(Error::MissingFeature { what: "images", feature: "images" }),
    }
}

/// Reads a JPEG or PNG file as a batch of one image, with values from 0 to 1. The content decides between
/// JPEG and PNG, not the extension. The image is rotated according to its EXIF orientation.
///
/// # Errors
/// A file that is no image or too large, or a build without the feature `images`.
pub fn read_image(path: &Path, color_mode: ColorMode) -> Result<Pixels> {
    let Image { height, width, bytes } = decode(path, None, color_mode)?;
    let dims = [1, height as usize, width as usize, color_mode.channels()];
    Ok(Pixels::new(dims, bytes, 255.0).expect("the image has its bytes"))
}

/// Decodes a file and resizes the image to `size`, its height and width, if given.
#[cfg(feature = "images")]
pub(super) fn decode(
    path: &Path,
    size: Option<(u32, u32)>,
    color_mode: ColorMode,
) -> Result<Image> {
    let image = decoder::read(path)?;
    let (height, width) = size.unwrap_or((image.height(), image.width()));
    let image = match (image.height(), image.width()) == (height, width) {
        true => image,
        false => image.resize_exact(width, height, image::imageops::FilterType::Triangle),
    };
    let bytes = match color_mode {
        ColorMode::Grayscale => image.into_luma8().into_raw(),
        ColorMode::Rgb => image.into_rgb8().into_raw(),
    };
    Ok(Image { height, width, bytes })
}

#[cfg(not(feature = "images"))]
pub(super) fn decode(_: &Path, _: Option<(u32, u32)>, _: ColorMode) -> Result<Image> {
    Err(Error::MissingFeature { what: "images", feature: "images" })
}

#[cfg(feature = "images")]
mod decoder {
    use super::MAX_SIDE;
    use crate::error::{Error, Result};
    use crate::saving::open_file;
    use image::{DynamicImage, ImageDecoder, ImageReader, Limits};
    use std::io::{Cursor, Read};
    use std::path::Path;

    /// The expected content of a file, for error messages.
    const IMAGE: &str = "a JPEG or PNG image";
    /// Maximum size in bytes of a file, and of a decoded image.
    const MAX_FILE_BYTES: u64 = 256 << 20;
    const MAX_IMAGE_BYTES: u64 = 512 << 20;

    /// Reads an image and applies its EXIF orientation.
    pub fn read(path: &Path) -> Result<DynamicImage> {
        let fail = |e| Error::io(path, e);
        let mut file = open_file(path, IMAGE)?;
        let size = file.metadata().map_err(fail)?.len();
        if size > MAX_FILE_BYTES {
            let received = format!("{size} bytes");
            return Err(Error::file(
                path,
                format!("a file of at most {MAX_FILE_BYTES} bytes"),
                received,
            ));
        }
        let mut bytes = vec![];
        file.read_to_end(&mut bytes).map_err(fail)?;
        let wrong = |e: image::ImageError| Error::file(path, IMAGE, e);
        let mut reader =
            ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(fail)?;
        let mut limits = Limits::default();
        limits.max_image_width = Some(MAX_SIDE);
        limits.max_image_height = Some(MAX_SIDE);
        limits.max_alloc = Some(MAX_IMAGE_BYTES);
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(wrong)?;
        let orientation = decoder.orientation().map_err(wrong)?;
        if decoder.total_bytes() > MAX_IMAGE_BYTES {
            let expected = format!("an image of at most {MAX_IMAGE_BYTES} bytes");
            return Err(Error::file(path, expected, decoder.total_bytes()));
        }
        let mut image = DynamicImage::from_decoder(decoder).map_err(wrong)?;
        image.apply_orientation(orientation);
        Ok(image)
    }
}
