public import ApusClient
public import ApusCore
import ApusTLS
import Foundation
import Logging
import Synchronization

/// What a voice client reports. Each closure is called from ``VoiceClient/run()``, one after the other, and must not
/// block. Set them before the initialization.
public struct VoiceHandlers: Sendable {
    /// Show this to a person: the device has no token yet (VA-3).
    public var authorization: @Sendable (VoiceAuthorization) -> Void = { _ in }
    /// The state has changed, or the token was refreshed (VA-4). The error says why it has failed.
    public var authorizationState: @Sendable (VoiceAuthorizationState, ApusError?) -> Void = { _, _ in }
    /// The link of the session has changed (VA-5).
    public var linkState: @Sendable (LinkState, ApusError?) -> Void = { _, _ in }
    /// The client has another session from now on; nil: none. What a part has opened on the earlier one ends with it.
    public var session: @Sendable (ClientSession?) -> Void = { _ in }

    public init() {}
}

/// A voice device: it is authorized by a person, keeps its token, and has a session with the cluster while it is
/// connected (VA-1 to VA-5, docs/voice.md).
///
/// ```swift
/// let client = try VoiceClient.create(handlers)
///     .setLocal("en-US")
///     .setAuthorizationUrl("https://apus.example.org:8080/v1/oauth")
///     .setDeviceInfo(clientId: "acme/speaker", deviceId: "speaker-1")
///     .setIVSService("apus.example.org:7443")
///     .setCA("/etc/speaker/ca", ofType: "pem")
///     .setLog("speaker", level: "DEBUG")
///     .setDataBase("/var/lib/speaker/voice.sqlite")
///     .initialization()
/// client.connect()
/// try await client.run()
/// ```
///
/// Each function of the chain returns the client. ``setDataBase(_:)`` and ``initialization()`` come last.
///
/// Concurrency model: any thread. A `Mutex` guards the state. All work is done in ``run()``, which the caller runs in a
/// task of its own.
public final class VoiceClient: Sendable {
    /// What the chain has set.
    struct SetUp: Sendable {
        var machine = VoiceSetUpStateMachine()
        var url: VoiceURL?
        var endpoints: [HostPort] = []
        var local = "en-US"
        var authorityFile = ""
        var client = ""
        var device: DeviceID?
        var log = ClientSession.loggingDisabled
        var database: VoiceDatabase?
    }

    struct State: Sendable {
        var setUp = SetUp()
        var authorization = VoiceAuthorizationState.uninitialized
        var session: ClientSession?
        var isConnectWanted = false
        var isRunning = false
    }

    let handlers: VoiceHandlers
    let state = Mutex(State())
    let inputs: AsyncStream<VoiceInput>
    let feed: AsyncStream<VoiceInput>.Continuation
    /// Unix seconds of the device's clock.
    let wallSeconds: @Sendable () -> Int64

    package init(_ handlers: VoiceHandlers, wallSeconds: @escaping @Sendable () -> Int64) {
        (self.handlers, self.wallSeconds) = (handlers, wallSeconds)
        (inputs, feed) = AsyncStream<VoiceInput>.makeStream()
    }

    // MARK: - The chain (VA-1)

    /// Creates a client, which has to be set up.
    public static func create(_ handlers: VoiceHandlers = VoiceHandlers()) -> VoiceClient {
        VoiceClient(handlers) { Int64(Date().timeIntervalSince1970) }
    }

    /// The address of the authorization service, such as `https://apus.example.org:8080/v1/oauth`.
    ///
    /// - Throws: 21031 if it is no address, or is set too late.
    @discardableResult
    public func setAuthorizationUrl(_ url: String) throws(ApusError) -> VoiceClient {
        let url = try VoiceURL(url)
        return try set(.authorizationURL) { $0.url = url }
    }

    /// The endpoints of the cluster for devices, such as `n1.example.org:7443`; several are separated by commas.
    ///
    /// - Throws: 21031 if one is no endpoint, or they are set too late.
    @discardableResult
    public func setIVSService(_ endpoints: String) throws(ApusError) -> VoiceClient {
        let parts = endpoints.split(separator: ",").map { $0.trimmingPrefix { $0 == " " } }
        let parsed = parts.compactMap { HostPort(String($0)) }
        guard !parsed.isEmpty, parsed.count == parts.count else {
            throw ApusError(.badParameter, "the service is HOST:PORT")
        }
        return try set(.service) { $0.endpoints = parsed }
    }

    /// The language of the device, such as `zh-CN`. Default `en-US`.
    ///
    /// - Throws: 21031 if it is no language (RFC 5646 §2.1), or is set too late.
    @discardableResult
    public func setLocal(_ language: String) throws(ApusError) -> VoiceClient {
        guard language.wholeMatch(of: /[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3}/) != nil else {
            throw ApusError(.badParameter, "the language is such as en or zh-CN")
        }
        return try set(.local) { $0.local = language }
    }

    /// The file of the certificate authority of the cluster, without its extension, and the extension.
    ///
    /// - Parameter type: `pem`.
    /// - Throws: 21031 for another type, or if it is set too late; 10022 if the file cannot be used.
    @discardableResult
    public func setCA(_ file: String, ofType type: String) throws(ApusError) -> VoiceClient {
        guard type.lowercased() == "pem" else { throw ApusError(.badParameter, "the certificate is a file in PEM") }
        let path = file.hasSuffix(".\(type)") ? file : "\(file).\(type)"
        _ = try TLSClientContext(authorityFile: path)
        return try set(.authority) { $0.authorityFile = path }
    }

    /// The label of the client's log, and the least level that is logged. Tokens and codes are never logged.
    ///
    /// - Parameter level: `TRACE`, `DEBUG`, `DEBUG0` to `DEBUG9`, `INFO`, `NOTICE`, `WARN`, `ERROR`, `CRITICAL` or
    ///   `NONE`, in any case.
    /// - Throws: 21031 for another level, or if it is set too late.
    @discardableResult
    public func setLog(_ prefix: String, level: String) throws(ApusError) -> VoiceClient {
        var log = Logger(label: prefix)
        switch level.uppercased() {
        case "NONE": log = ClientSession.loggingDisabled
        case "TRACE": log.logLevel = .trace
        case let name where name.wholeMatch(of: /DEBUG[0-9]?/) != nil: log.logLevel = .debug
        case "INFO": log.logLevel = .info
        case "NOTICE": log.logLevel = .notice
        case "WARN", "WARNING": log.logLevel = .warning
        case "ERROR": log.logLevel = .error
        case "CRITICAL": log.logLevel = .critical
        default: throw ApusError(.badParameter, "the level is such as DEBUG or INFO")
        }
        return try set(.log) { [log] in $0.log = log }
    }

    /// The product and the device.
    ///
    /// - Parameters:
    ///   - clientId: `CUSTOMER/PRODUCT`; the customer is `-` for products of the cluster's operator.
    ///   - deviceId: the device's own id, unique in the cluster.
    /// - Throws: 21031 if one is not valid, or if they are set too late.
    @discardableResult
    public func setDeviceInfo(clientId: String, deviceId: String) throws(ApusError) -> VoiceClient {
        let parts = clientId.parts(separatedBy: "/")
        guard parts.count == 2, parts[0] == CustomerID.none || CustomerID(rawValue: parts[0]) != nil,
            ProductID(rawValue: parts[1]) != nil
        else { throw ApusError(.badParameter, "the client id is CUSTOMER/PRODUCT") }
        let device = try DeviceID(checking: deviceId, "the device's id")
        return try set(.deviceInfo) { ($0.client, $0.device) = (clientId, device) }
    }

    /// Opens the local database, or creates it (VA-2). It blocks for as long as the disk takes.
    ///
    /// - Throws: 21031 before the authorization address, the service, the certificate and the device are set; otherwise
    ///   as ``VoiceDatabase/init(path:)``.
    @discardableResult
    public func setDataBase(_ path: String) throws(ApusError) -> VoiceClient {
        try state.withLock { state throws(ApusError) in try state.setUp.machine.check(.database) }
        let database = try VoiceDatabase(path: path)
        return try set(.database) { $0.database = database }
    }

    /// Completes the chain.
    ///
    /// - Throws: 21031 before ``setDataBase(_:)``, and the second time.
    @discardableResult
    public func initialization() throws(ApusError) -> VoiceClient { try set(.initialization) { _ in } }

    private func set(
        _ step: VoiceSetUpStateMachine.Step, _ body: (inout SetUp) -> Void
    ) throws(ApusError) -> VoiceClient {
        try state.withLock { state throws(ApusError) in
            try state.setUp.machine.check(step)
            state.setUp.machine.take(step)
            body(&state.setUp)
        }
        return self
    }

    // MARK: - What others see

    /// Whether the client has a token.
    public var authorizationState: VoiceAuthorizationState { state.withLock { $0.authorization } }

    /// The session with the cluster; nil while the client is not connected, or has no token. It is replaced with each
    /// token.
    public var session: ClientSession? { state.withLock { $0.session } }

    /// The device.
    public var device: DeviceID? { state.withLock { $0.setUp.device } }

    /// The language of the device.
    public var local: String { state.withLock { $0.setUp.local } }

    /// The local database, for settings of the app; nil before ``setDataBase(_:)``.
    public var database: VoiceDatabase? { state.withLock { $0.setUp.database } }

    // MARK: - The session (VA-5)

    /// Opens a session with the cluster as soon as there is a token, and keeps it.
    public func connect() { feed.yield(.connect) }

    /// Ends the session. The token stays.
    public func disconnect() { feed.yield(.disconnect) }

    /// Ends the session and opens it again. What waits for its next attempt is tried at once.
    public func reconnect() { feed.yield(.reconnect) }

    /// Ends the session, forgets the token, the settings and the alarms, and asks for a new approval.
    public func resetIVS() { feed.yield(.reset) }

    /// The wall clock was set. A client looks at it once a minute besides.
    public func clockChanged() { feed.yield(.look(nil)) }
}
