import ApusClient
import ApusCore
public import ApusMedia
import ApusThreads
import CApusMedia

/// Pictures from a camera of Video4Linux (IV-C8). It needs Debian's package libavdevice59.
///
/// Concurrency model: see ``VideoCapturable``.
public final class CameraInput: VideoCapturable {
    private let path: String
    private let width: Int
    private let height: Int
    private let frameRate: Int
    private let thread = SourceThread()

    /// - Parameters:
    ///   - path: such as `/dev/video0`.
    ///   - width: the wanted size. A camera that does not have it is refused.
    ///   - frameRate: pictures a second.
    public init(path: String, width: Int = 640, height: Int = 480, frameRate: Int = 25) {
        (self.path, self.width, self.height, self.frameRate) = (path, width, height, frameRate)
    }

    public func start(_ deliver: @escaping @Sendable (CaptureEvent<Picture>) -> Void) {
        thread.start(
            name: "apus-camera", onEnd: { error in deliver(error.map { .failed($0) } ?? .ended) },
            run: { [self] interrupt throws(ApusError) in
                let input = try RawInput(
                    address: path, format: "v4l2", device: true, kind: AVMEDIA_TYPE_VIDEO, name: "the camera \(path)",
                    options: [("video_size", "\(width)x\(height)"), ("framerate", "\(frameRate)")],
                    interrupt: interrupt)
                let converter = PictureConverter()
                var first: Int64?
                while !thread.isStopped, let frame = try input.next() {
                    guard frame.pointee.pts != APUS_AV_NOPTS else { continue }
                    let now = av_rescale_q(frame.pointee.pts, input.timeBase, AVRational(num: 1, den: 1_000_000))
                    let start = first ?? now
                    first = start
                    deliver(.media(try converter.convert(frame, ptsMicroseconds: max(0, now - start))))
                }
            })
    }

    public func stop() { thread.stop() }
}
