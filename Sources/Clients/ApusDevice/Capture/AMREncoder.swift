import ApusCore
import ApusMedia
import CApusMedia

/// One encoder of AMR, narrow or wide band, from opencore-amrnb or vo-amrwbenc: libavcodec has none.
///
/// Each frame has 20 ms, in the form of files: a byte with the mode, then the speech bits (RFC 4867 §5.3). There is no
/// discontinuous transmission. Decoded sound is 5 to 6 ms late.
///
/// Concurrency model: created, used and released by one thread at a time.
final class AMREncoder: FrameEncoder {
    /// A library that is loaded when an encoder is created.
    struct Library {
        var fileName: String
        /// Debian's package.
        var package: String

        static let narrow = Library(fileName: "libopencore-amrnb.so.0", package: "libopencore-amrnb0")
        static let wide = Library(fileName: "libvo-amrwbenc.so.0", package: "libvo-amrwbenc0")
    }

    let samplesPerFrame: Int
    /// Empty: a decoder of AMR needs none.
    let extraData: [UInt8] = []
    /// The number of the mode, which is the frame type (3GPP TS 26.101 and 26.201, table 1a).
    private let mode: Int32
    // SAFETY: owned by this encoder alone, and freed once, in `deinit`.
    private let state: OpaquePointer

    /// - Parameters:
    ///   - encoding: of AMR.
    ///   - fileName: nil for the library of this codec.
    /// - Throws: 21036 if this machine does not have the library.
    init(_ encoding: SoundEncoding, fileName: String? = nil) throws(ApusError) {
        let isWide = encoding.codec == .amrWide
        let library = isWide ? Library.wide : Library.narrow
        let fileName = fileName ?? library.fileName
        samplesPerFrame = encoding.sampleRate / 50
        mode = Int32(SoundEncoding.bitRates(of: encoding.codec).lastIndex { $0 <= encoding.bitsPerSecond } ?? 0)
        var state: OpaquePointer?
        let result = apus_amr_new(fileName, isWide ? 1 : 0, &state)
        guard result != APUS_AMR_NO_LIBRARY else {
            throw ApusError(
                .encoderUnavailable,
                "\(encoding.codec) cannot be encoded without \(fileName); install the package \(library.package)")
        }
        guard let state else { throw ApusError(.internalFailure, "no memory") }
        self.state = state
    }

    deinit { apus_amr_free(state) }

    func encode(_ samples: ArraySlice<Int16>, pts: Int64) throws(ApusError) -> [Encoder.Output] {
        guard samples.count == samplesPerFrame else {
            throw ApusError(.internalFailure, "a frame of AMR does not have \(samples.count) samples")
        }
        let room = Int(APUS_AMR_FRAME_BYTES)
        // SAFETY: the library reads the `samplesPerFrame` samples that were checked above, and writes at most `room`
        // bytes. Both pointers are used only during the call.
        let bytes = [UInt8](unsafeUninitializedCapacity: room) { out, count in
            samples.withUnsafeBufferPointer { input in
                count = min(max(Int(apus_amr_encode(state, mode, input.baseAddress, out.baseAddress)), 0), room)
            }
        }
        guard !bytes.isEmpty else { throw ApusError(.mediaUnreadable, "the encoder of AMR failed") }
        return [Encoder.Output(bytes: bytes, pts: pts, isKey: false)]
    }

    func finish() throws(ApusError) -> [Encoder.Output] { [] }
}
