package import ApusCore
package import CApusMedia

/// Converts decoded sound to signed samples of one channel at a fixed rate, also where the input's form changes.
///
/// Concurrency model: created, used and released on one thread.
package final class SoundConverter {
    /// The rates of inputs. They are numbers of another side, and decide how much memory a conversion needs.
    private static let inputRates: ClosedRange<Int32> = 4_000...192_000
    /// The most samples of one frame: a second of the highest rate.
    private static let sampleCountMax: Int32 = 192_000

    private struct Form: Equatable {
        var format: Int32
        var rate: Int32
        var channels: Int32
    }

    private let sampleRate: Int
    private var context: OpaquePointer?
    /// The form for which the context was made.
    private var form: Form?
    private var output: [Int16] = []

    package init(sampleRate: Int) { self.sampleRate = sampleRate }

    deinit { swr_free(&context) }

    /// - Throws: 10026 if the sound has a rate or a length that no sound has.
    package func convert(_ frame: UnsafeMutablePointer<AVFrame>) throws(ApusError) -> [Int16] {
        let (rate, count) = (frame.pointee.sample_rate, frame.pointee.nb_samples)
        let form = Form(format: frame.pointee.format, rate: rate, channels: frame.pointee.ch_layout.nb_channels)
        guard Self.inputRates.contains(rate), count <= Self.sampleCountMax else {
            throw ApusError(
                .mediaUnreadable, "sound with \(rate) samples a second and \(count) samples a frame cannot be converted"
            )
        }
        if form != self.form {
            swr_free(&context)
            context = apus_resampler(
                &frame.pointee.ch_layout, AVSampleFormat(form.format), rate, Int32(sampleRate))
            self.form = form
        }
        guard let context else {
            throw ApusError(
                .mediaUnreadable,
                "sound with \(form.channels) channels and \(rate) samples a second cannot be converted")
        }
        let room = Int(swr_get_out_samples(context, count))
        guard room > 0 else { return [] }
        if output.count < room { output = [Int16](repeating: 0, count: room) }
        let written = output.withUnsafeMutableBufferPointer { buffer in
            // SAFETY: the pointer is used only inside the call, and has room for `room` samples.
            apus_resample_frame(context, frame, buffer.baseAddress, Int32(room))
        }
        guard written >= 0 else { throw LibAV.error(written, "the sound cannot be converted") }
        return Array(output[..<Int(written)])
    }
}
