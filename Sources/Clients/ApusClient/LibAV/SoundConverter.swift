package import ApusCore
package import CApusMedia

/// Converts decoded sound to signed samples of one channel at a fixed rate, also where the input's form changes.
///
/// Concurrency model: created, used and released on one thread.
package final class SoundConverter {
    /// The rates of inputs. They are numbers of another side, and decide how much memory a conversion needs.
    private static let inputRates: ClosedRange<Int32> = 4_000...192_000
    /// The most samples of one frame: a second of the highest rate.
    private static let sampleCountMax = 192_000

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

    /// Converts decoded sound.
    ///
    /// - Throws: 10026 if the sound has a rate or a length that no sound has.
    package func convert(_ frame: UnsafeMutablePointer<AVFrame>) throws(ApusError) -> [Int16] {
        let form = Form(
            format: frame.pointee.format, rate: frame.pointee.sample_rate,
            channels: frame.pointee.ch_layout.nb_channels)
        return try convert(form, &frame.pointee.ch_layout, Int(frame.pointee.nb_samples)) { context, output, room in
            apus_resample_frame(context, frame, output, room)
        }
    }

    /// Converts samples of one channel.
    ///
    /// - Throws: as ``convert(_:)``.
    package func convert(_ samples: [Int16], sampleRate rate: Int) throws(ApusError) -> [Int16] {
        guard rate != sampleRate else { return samples }
        var layout = AVChannelLayout()
        av_channel_layout_default(&layout, 1)
        let form = Form(format: AV_SAMPLE_FMT_S16.rawValue, rate: Int32(clamping: rate), channels: 1)
        return try convert(form, &layout, samples.count) { context, output, room in
            samples.withUnsafeBufferPointer { input in
                // SAFETY: the pointer is used only inside the call, with the size of its array.
                apus_resample(context, input.baseAddress, Int32(input.count), output, room)
            }
        }
    }

    private func convert(
        _ form: Form, _ layout: UnsafePointer<AVChannelLayout>, _ count: Int,
        _ resample: (OpaquePointer, UnsafeMutablePointer<Int16>?, Int32) -> Int32
    ) throws(ApusError) -> [Int16] {
        guard Self.inputRates.contains(form.rate), count <= Self.sampleCountMax else {
            throw ApusError(
                .mediaUnreadable,
                "sound with \(form.rate) samples a second and \(count) samples a frame cannot be converted")
        }
        if form != self.form {
            swr_free(&context)
            context = apus_resampler(layout, AVSampleFormat(form.format), form.rate, Int32(sampleRate))
            self.form = form
        }
        guard let context else {
            throw ApusError(
                .mediaUnreadable,
                "sound with \(form.channels) channels and \(form.rate) samples a second cannot be converted")
        }
        let room = Int(swr_get_out_samples(context, Int32(count)))
        guard room > 0 else { return [] }
        if output.count < room { output = [Int16](repeating: 0, count: room) }
        let written = output.withUnsafeMutableBufferPointer { buffer in
            // SAFETY: the pointer is used only inside the call, and has room for `room` samples.
            resample(context, buffer.baseAddress, Int32(room))
        }
        guard written >= 0 else { throw LibAV.error(written, "the sound cannot be converted") }
        return Array(output[..<Int(written)])
    }
}
