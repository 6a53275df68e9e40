package import ApusCore
package import ApusMedia
package import CApusMedia

/// Common helpers for libav: conversion of errors and codec numbers (D10).
package enum LibAV {
    /// Stops libav from writing to standard error. Call it before the first use. May be repeated.
    package static func prepare() { apus_av_silence() }

    /// Makes the inputs and outputs of libavdevice available.
    ///
    /// - Parameter name: of the device that needs them, such as "the microphone default".
    /// - Throws: 10022 if this machine does not have libavdevice.
    package static func registerDevices(for name: String) throws(ApusError) {
        guard apus_av_register_devices() == 0 else {
            throw ApusError(
                .configurationInvalid,
                "\(name) cannot be opened without libavdevice; install the package libavdevice59")
        }
    }

    /// libav's error number for data that is not media.
    package static var invalidData: Int32 { APUS_AV_INVALID_DATA }

    /// libav's description of a return code.
    package static func sentence(_ code: Int32) -> String {
        if code == APUS_AV_EXIT { return "no answer in time" }
        var text = [CChar](repeating: 0, count: 128)
        av_strerror(code, &text, text.count)
        return String(nullTerminated: text)
    }

    /// Error 10026 with the failed operation and libav's description.
    package static func error(_ code: Int32, _ what: String) -> ApusError {
        ApusError(.mediaUnreadable, "\(what): \(sentence(code))")
    }

    /// The codec's name in libav's tools.
    package static func name(_ id: AVCodecID) -> String { String(cString: avcodec_get_name(id)) }

    /// The codec with this number; nil if Apus does not support it.
    package static func codec(_ id: AVCodecID) -> Codec? {
        switch id {
        case AV_CODEC_ID_H264: .h264
        case AV_CODEC_ID_HEVC: .h265
        case AV_CODEC_ID_AAC: .aac
        case AV_CODEC_ID_OPUS: .opus
        case AV_CODEC_ID_PCM_ALAW: .g711a
        case AV_CODEC_ID_PCM_MULAW: .g711u
        case AV_CODEC_ID_AMR_NB: .amrNarrow
        case AV_CODEC_ID_AMR_WB: .amrWide
        case AV_CODEC_ID_MP3: .mp3
        case AV_CODEC_ID_PCM_S16BE: .l16
        default: nil
        }
    }

    /// libav's number of a codec.
    package static func id(_ codec: Codec) -> AVCodecID {
        switch codec {
        case .h264: AV_CODEC_ID_H264
        case .h265: AV_CODEC_ID_HEVC
        case .aac: AV_CODEC_ID_AAC
        case .opus: AV_CODEC_ID_OPUS
        case .g711a: AV_CODEC_ID_PCM_ALAW
        case .g711u: AV_CODEC_ID_PCM_MULAW
        case .amrNarrow: AV_CODEC_ID_AMR_NB
        case .amrWide: AV_CODEC_ID_AMR_WB
        case .mp3: AV_CODEC_ID_MP3
        case .l16: AV_CODEC_ID_PCM_S16BE
        }
    }
}

/// A stop request and a deadline for libav's blocking calls.
///
/// Concurrency model: every method may be called from any thread; the C side uses atomics.
package final class LibAVInterrupt: @unchecked Sendable {  // SAFETY: the pointer never changes; C uses atomics.
    package let handle: OpaquePointer

    /// - Throws: 10018 if there is no memory.
    package init() throws(ApusError) {
        guard let handle = apus_interrupt_new() else { throw ApusError(.internalFailure, "no memory") }
        self.handle = handle
    }

    package func stop() { apus_interrupt_stop(handle) }
    package var isStopped: Bool { apus_interrupt_is_stopped(handle) != 0 }

    /// Sets the deadline of blocking calls, from now; nil removes it.
    package func setDeadline(in span: Duration?) {
        let time = span.map { Int64((MonotonicTime.now() + $0).nanoseconds) } ?? 0
        apus_interrupt_deadline(handle, time)
    }

    deinit { apus_interrupt_free(handle) }
}
