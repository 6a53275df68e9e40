package import ApusCore
package import ApusMedia
package import CApusMedia

/// Converts decoded pictures to YUV 4:2:0 with even sizes, also where the input's size or form changes.
///
/// Concurrency model: created, used and released on one thread.
package final class PictureConverter {
    private struct Form: Equatable {
        var width: Int32
        var height: Int32
        var format: Int32
    }

    private var scaler: OpaquePointer?
    /// The form for which the scaler was made.
    private var form: Form?

    package init() {}

    deinit { sws_freeContext(scaler) }

    /// - Throws: 10026 if libswscale refuses the form.
    package func convert(
        _ frame: UnsafeMutablePointer<AVFrame>, ptsMicroseconds: Int64
    ) throws(ApusError) -> Picture {
        let form = Form(width: frame.pointee.width, height: frame.pointee.height, format: frame.pointee.format)
        let (width, height) = (Int(form.width) & ~1, Int(form.height) & ~1)
        guard width > 0, height > 0 else { throw ApusError(.mediaUnreadable, "a picture has no size") }
        if form != self.form {
            sws_freeContext(scaler)
            scaler = sws_getContext(
                form.width, form.height, AVPixelFormat(rawValue: form.format), Int32(width), Int32(height),
                AV_PIX_FMT_YUV420P, SWS_BILINEAR, nil, nil, nil)
            self.form = form
        }
        guard let target = av_frame_alloc() else { throw ApusError(.internalFailure, "no memory") }
        var owned: UnsafeMutablePointer<AVFrame>? = target
        defer { av_frame_free(&owned) }
        target.pointee.width = Int32(width)
        target.pointee.height = Int32(height)
        target.pointee.format = AV_PIX_FMT_YUV420P.rawValue
        let result = scaler == nil ? APUS_AV_INVALID_DATA : sws_scale_frame(scaler, target, frame)
        guard result >= 0 else { throw LibAV.error(result, "the picture cannot be converted") }
        var bytes = [UInt8](repeating: 0, count: Picture.byteCount(width: width, height: height))
        let copied = bytes.withUnsafeMutableBufferPointer { buffer in
            // SAFETY: the buffer has the size that libav computes for this form without padding.
            apus_copy_picture(target, buffer.baseAddress, Int32(buffer.count))
        }
        guard copied >= 0 else { throw LibAV.error(copied, "the picture cannot be copied") }
        return Picture(width: width, height: height, ptsMicroseconds: ptsMicroseconds, bytes: bytes)
    }
}
