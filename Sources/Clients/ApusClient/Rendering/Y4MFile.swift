public import ApusCore
public import ApusMedia
import Glibc
import Synchronization

/// Writes pictures to a file in the YUV4MPEG2 form, which players and encoders read, also from a pipe.
///
/// The form has a fixed rate of pictures and no times: every picture that arrives is one.
///
/// Concurrency model: see ``VideoRenderable``.
public final class Y4MFile: VideoRenderable {
    private let path: String
    private let frameRate: Int
    private let file: Int32
    private let state = Mutex(State())

    private struct State {
        var size: (width: Int, height: Int)?
        var isClosed = false
    }

    /// Creates the file, or empties it. For a named pipe, it waits until that is read.
    ///
    /// - Parameter frameRate: the rate that the file says.
    /// - Throws: 10021 if it cannot be written.
    public init(path: String, frameRate: Int = 25) throws(ApusError) {
        (self.path, self.frameRate) = (path, frameRate)
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o644)
        guard file >= 0 else { throw Self.failed(path, errno) }
    }

    deinit { try? finish() }

    /// Writes one picture.
    ///
    /// - Throws: 21035 if it has another size than the first; 10021 if it cannot be written.
    public func render(_ picture: Picture) throws(ApusError) {
        let (size, isClosed) = state.withLock { state in
            defer { state.size = state.size ?? (picture.width, picture.height) }
            return (state.size, state.isClosed)
        }
        guard !isClosed else { return }
        if let size, size != (picture.width, picture.height) {
            throw ApusError(
                .pictureSizeChanged,
                "the pictures changed from \(size.width)x\(size.height) to \(picture.width)x\(picture.height), which "
                    + "\(path) cannot hold")
        }
        var bytes: [UInt8] = []
        if size == nil {
            bytes += Array("YUV4MPEG2 W\(picture.width) H\(picture.height) F\(frameRate):1 Ip A1:1 C420jpeg\n".utf8)
        }
        bytes += Array("FRAME\n".utf8) + picture.bytes
        if let number = writeAll(file, bytes) { throw Self.failed(path, number) }
    }

    public func finish() throws(ApusError) {
        let isFirst = state.withLock { state in
            defer { state.isClosed = true }
            return !state.isClosed
        }
        if isFirst, close(file) != 0 { throw Self.failed(path, errno) }
    }

    private static func failed(_ path: String, _ number: Int32) -> ApusError {
        ApusError(.storageFailed, "the picture file \(path) cannot be written: \(String(cString: strerror(number)))")
    }
}
