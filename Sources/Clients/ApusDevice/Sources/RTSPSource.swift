import ApusClient
import ApusCore
import ApusMedia
import ApusThreads
public import Logging
import NIOCore

/// Receives a network camera's stream over RTSP (TCP), and reconnects after every failure.
///
/// If the camera cannot be reached the source tries again, after waits of 0.5 to 15 s with jitter. Times then continue
/// with the elapsed time added. A camera that refuses the name and password is asked again too, after waits of 1 to 60
/// s: many refuse everybody while they start. Only an invalid address ends the source.
///
/// The camera is not trusted: every message, description and picture has a bound, and nothing that it sends is parsed
/// by a library. At most ``MediaFrame/joinedByteCountMax`` bytes of a picture are kept, twice.
///
/// Concurrency model: see ``MediaSource``.
public final class RTSPSource: MediaSource {
    /// The time-out of opening, up to the answer to PLAY.
    public static let openTimeout = Duration.seconds(10)
    /// The longest silence of the camera, which also answers keepalives.
    public static let readTimeout = Duration.seconds(10)
    /// The longest time without a picture or sound. Cameras that send a picture from time to time are kept.
    public static let mediaTimeout = Duration.seconds(120)
    /// The longest time from PLAY to a key frame with the configuration of its decoder.
    public static let configurationTimeout = Duration.seconds(60)
    /// The waits after the camera has refused the name and password.
    static let refusalWaits = Duration.seconds(1)...Duration.seconds(60)
    /// The most redirections that are followed in a row, all to the camera's own host.
    static let redirectCountMax = 3

    private let address: CameraAddress?
    private let log: Logger
    private let thread = SourceThread()

    /// - Parameters:
    ///   - url: `rtsp://` or `rtsps://`, with user and password if the camera requires them. Logs and errors show host
    ///     and port alone.
    ///   - user: the user, if it is not in the address.
    ///   - password: the password, if it is not in the address.
    public init(url: String, user: String? = nil, password: String? = nil, log: Logger) {
        var address = CameraAddress(url)
        if let user { address?.user = user }
        if let password { address?.password = password }
        self.address = address
        self.log = log
    }

    public func start(_ deliver: @escaping @Sendable (SourceEvent) -> Void) {
        thread.start(name: "apus-rtsp", onEnd: SourceEvent.end(deliver)) { [self] _ throws(ApusError) in
            guard let address else {
                throw ApusError(
                    .configurationInvalid,
                    "the camera's address is not rtsp://HOST/PATH or rtsps://HOST/PATH, with USER:PASSWORD@ if needed")
            }
            run(address, deliver)
        }
    }

    public func stop() { thread.stop() }

    private func run(_ address: CameraAddress, _ deliver: (SourceEvent) -> Void) {
        var random = SeededRandom(seed: .random(in: 0...(.max)))
        var (reconnect, line) = (Reconnect(), CameraLine())
        var refused = Reconnect(from: Self.refusalWaits.lowerBound, to: Self.refusalWaits.upperBound)
        var (target, redirections) = (address, 0)
        while !thread.isStopped {
            let start = MonotonicTime.now()
            var wait: Duration?
            do throws(RTSPClientStateMachine.Failure) {
                let connection = CameraStream(
                    target, random: random.next(), log: log, isStopped: { [thread] in thread.isStopped })
                try connection.play(&line, deliver)
                if thread.isStopped { return }
                log.notice("The camera ended its stream", metadata: [LogKey.address: "\(address.shown)"])
            } catch {
                if thread.isStopped { return }
                switch error {
                case .redirected(let location):
                    if redirections < Self.redirectCountMax, let next = address.redirected(to: location) {
                        (target, redirections) = (next, redirections + 1)
                        continue
                    }
                    warn(ApusError(.mediaUnreadable, "the camera at \(address.shown) names another host"), address)
                case .unauthorized(let error):
                    warn(error, address)
                    wait = refused.nextWait(lasted: MonotonicTime.now() - start, unit: random.nextUnit())
                case .failed(let error): warn(error, address)
                }
            }
            (target, redirections) = (address, 0)
            let usual = reconnect.nextWait(lasted: MonotonicTime.now() - start, unit: random.nextUnit())
            guard (MonotonicTime.now() + (wait ?? usual)).sleep(unless: { thread.isStopped }) else { return }
        }
    }

    private func warn(_ error: ApusError, _ address: CameraAddress) {
        let facts = Logger.facts(of: error).merging([LogKey.address: "\(address.shown)"]) { $1 }
        log.warning("The camera cannot be used", metadata: facts)
    }
}

extension CameraAddress {
    /// The address that the camera names, with the same user and password. Nil for another host, which must not receive
    /// them, and for one without TLS instead of one with it.
    package func redirected(to location: String) -> CameraAddress? {
        guard var next = CameraAddress(location), next.isSecure || !isSecure,
            Array(next.host.lowercased().utf8) == Array(host.lowercased().utf8)
        else { return nil }
        (next.user, next.password) = (user, password)
        return next
    }
}
