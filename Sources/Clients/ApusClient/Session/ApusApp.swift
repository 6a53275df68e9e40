import ApusContract
public import ApusCore
import Foundation
public import Logging
import NIOCore
import Synchronization

/// What an app receives from ``ApusApp``.
///
/// Isolation: called on the session's event loop, and where a line is logged. Must not block.
public protocol ApusAppDelegate: AnyObject, Sendable {
    /// The link state changed (IV-A5).
    func didUpdate(_ linkStatus: LinkState)
    /// A line of the log, of ``ApusApp/logLevel`` or above.
    func didOutputPrettyLogMessage(_ message: String)
}

/// The SDK of an app: set up once, and registered with an identity (IV-A4).
///
/// ```swift
/// ApusApp.shared.logLevel = .debug
/// try ApusApp.shared.setUp(options, delegate: delegate)
/// let session = try ApusApp.shared.register(access: access, token: token)
/// ```
///
/// It has one ``ClientSession`` at a time. An app that needs several makes them itself.
///
/// Isolation: any thread. A `Mutex` guards the session; the delegate is called outside of it.
public final class ApusApp: Sendable {
    /// With what an app starts.
    public struct LaunchOptions: Sendable {
        /// Endpoints to start with. The cluster reports the others.
        public var endpoints: [HostPort]
        /// PEM file of the authority that signed the endpoints' certificates.
        public var authorityFile: String
        /// Software and version, for operators.
        public var agent: String

        public init(endpoints: [HostPort], authorityFile: String, agent: String = "apus") {
            (self.endpoints, self.authorityFile, self.agent) = (endpoints, authorityFile, agent)
        }
    }

    private struct State {
        var options: LaunchOptions?
        var session: ClientSession?
        /// Changes of earlier sessions are not reported.
        var registration = 0
        var link = LinkState.offline
    }

    /// The app of this process.
    public static let shared = ApusApp()

    private let state = Mutex(State())
    private let output = LogOutput()

    public init() {}

    /// The least level of lines for the delegate. It can be changed at any time.
    public var logLevel: Logger.Level {
        get { output.level }
        set { output.level = newValue }
    }

    /// The link state at this moment; ``LinkState/offline`` before ``register(access:token:)`` (IV-A5).
    public var linkStatus: LinkState { state.withLock { $0.link } }

    /// The session of the last registration; nil before the first.
    public var session: ClientSession? { state.withLock { $0.session } }

    /// Sets the SDK up.
    ///
    /// - Parameter delegate: is not retained.
    /// - Throws: 21031 the second time, and without an endpoint.
    public func setUp(_ options: LaunchOptions, delegate: (any ApusAppDelegate)? = nil) throws(ApusError) {
        guard !options.endpoints.isEmpty else { throw ApusError(.badParameter, "an endpoint is needed") }
        let isFirst = state.withLock { state in
            guard state.options == nil else { return false }
            state.options = options
            return true
        }
        guard isFirst else { throw ApusError(.badParameter, "the SDK is set up already") }
        output.delegate = delegate
    }

    /// Connects with an identity, in place of the one before. Call it again after ``LinkState/tokenFailed`` and
    /// ``LinkState/kicked`` (IV-A7).
    ///
    /// - Parameters:
    ///   - access: the app's access id (IV-A1).
    ///   - token: issued for it (IV-A2).
    /// - Throws: 21025 before ``setUp(_:delegate:)``, 12001 if the token is of another access id, 10022 if the
    ///   authority's file cannot be used.
    @discardableResult
    public func register(access: AccessID, token: String) throws(ApusError) -> ClientSession {
        guard let options = state.withLock({ $0.options }) else {
            throw ApusError(.unavailable, "the SDK is not set up")
        }
        guard Self.subject(of: token) == access.rawValue else {
            throw ApusError(.tokenInvalid, "the token is not one of the access id \(access)")
        }
        let number = state.withLock { state in
            state.registration += 1
            return state.registration
        }
        let log = Logger(label: "apus.client") { [output] _ in output.handler }
        let session = try ClientSession(
            configuration: ClientConfiguration(
                endpoints: options.endpoints, authorityFile: options.authorityFile, token: token, role: .app,
                agent: options.agent),
            log: log, onLinkState: { [weak self] in self?.changed($0, $1, of: number, log) })
        let (former, isCurrent) = state.withLock { state in
            guard state.registration == number else { return (nil as ClientSession?, false) }
            defer { state.session = session }
            return (state.session, true)
        }
        former?.close()
        if isCurrent { session.start() }
        return session
    }

    private func changed(_ link: LinkState, _ error: ApusError?, of number: Int, _ log: Logger) {
        let isCurrent = state.withLock { state in
            guard state.registration == number else { return false }
            state.link = link
            return true
        }
        guard isCurrent else { return }
        switch link {
        case .tokenFailed, .kicked:
            log.error("The session has ended", metadata: error.map { Logger.facts(of: $0) } ?? [:])
        case .offline: log.warning("No node can be reached", metadata: error.map { Logger.facts(of: $0) } ?? [:])
        case .online: log.info("The app is online")
        }
        output.delegate?.didUpdate(link)
    }

    /// The access id in the token. The cluster checks the signature.
    private static func subject(of token: String) -> String? {
        let parts = token.split(separator: ".")
        guard parts.count == 3 else { return nil }
        var text = parts[1].replacingOccurrences(of: "-", with: "+").replacingOccurrences(of: "_", with: "/")
        text += String(repeating: "=", count: (4 - text.utf8.count % 4) % 4)
        guard let data = Data(base64Encoded: text),
            let claims = try? JSONSerialization.jsonObject(with: data) as? [String: Any]
        else { return nil }
        return claims["sub"] as? String
    }
}

/// Where the lines of the log go.
private final class LogOutput: Sendable {
    private struct State {
        var level = Logger.Level.info
        weak var delegate: (any ApusAppDelegate)?
        var folding = LogFolding()
    }

    private let state = Mutex(State())

    var level: Logger.Level {
        get { state.withLock { $0.level } }
        set { state.withLock { $0.level = newValue } }
    }

    var delegate: (any ApusAppDelegate)? {
        get { state.withLock { $0.delegate } }
        set { state.withLock { $0.delegate = newValue } }
    }

    var handler: any LogHandler { Handler(output: self) }

    /// Passes a line to the delegate, or folds it.
    ///
    /// - Parameter kind: nil for a line that is not folded.
    func write(_ line: String, kind: String?) {
        guard let delegate else { return }
        let lines = state.withLock { $0.folding.add(line, kind: kind, now: .now()) }
        for line in lines { delegate.didOutputPrettyLogMessage(line) }
    }

    /// `HH:mm:ss.SSS` of Unix milliseconds.
    private static func time(_ milliseconds: Int64) -> String {
        func text(_ value: Int64, _ digits: Int) -> String {
            let text = "\(value)"
            return String(repeating: "0", count: max(0, digits - text.count)) + text
        }
        let seconds = milliseconds / 1000 % 86_400
        return "\(text(seconds / 3600, 2)):\(text(seconds / 60 % 60, 2)):\(text(seconds % 60, 2))."
            + text(milliseconds % 1000, 3)
    }

    /// Writes `HH:mm:ss.SSS [SDK] [I] message key=value …` to the delegate (IV-G1). The time is that of UTC.
    private struct Handler: LogHandler {
        let output: LogOutput
        var metadata: Logger.Metadata = [:]

        /// That of the app, which may change at any time.
        var logLevel: Logger.Level {
            get { output.level }
            set { _ = newValue }
        }

        subscript(metadataKey key: String) -> Logger.Metadata.Value? {
            get { metadata[key] }
            set { metadata[key] = newValue }
        }

        func log(event: LogEvent) {
            guard output.delegate != nil else { return }
            var facts = metadata.merging(event.metadata ?? [:]) { $1 }
            let isFolded = facts.removeValue(forKey: LogKey.folded) != nil
            let text = facts.sorted { $0.key < $1.key }.map { " \($0.key)=\($0.value)" }.joined()
            let line =
                "\(LogOutput.time(WallClock.milliseconds())) [SDK] [\(event.level.letter)] \(event.message)\(text)"
            output.write(line, kind: isFolded ? "\(event.message)" : nil)
        }
    }
}

extension Logger.Level {
    /// As lines of the log have it (IV-G1).
    fileprivate var letter: String {
        switch self {
        case .trace: "T"
        case .debug: "D"
        case .info: "I"
        case .notice: "N"
        case .warning: "W"
        case .error: "E"
        case .critical: "C"
        }
    }
}
