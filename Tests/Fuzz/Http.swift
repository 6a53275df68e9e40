import ApusClientAPI
import ApusContract
import ApusCore
import ApusHTTP
import ApusSessions
import Foundation
import HTTPTypes
import Hummingbird
import HummingbirdCore
import Logging
import SwiftProtobuf
import NIOCore
import NIOEmbedded
import NIOHTTP1
import Synchronization

private let adminToken = "admin.token"
private let clientToken = "client.token"
private let bodyByteCountMax = 256

/// D8, D13: requests may be cut anywhere; each is answered; what an operator may do is done for the bearer of an
/// operator's token alone, and a client's token is looked at only where it was not sent in the clear over a network.
///
/// The lowest bit of the first byte says whether the client is on this machine, the others where the rest is cut.
func fuzzHttp(_ input: [UInt8]) {
    guard let first = input.first else { return }
    let bytes = Array(input.dropFirst())
    let whole = requests(in: [bytes])
    let cut = min(Int(first >> 1), bytes.count)
    precondition(requests(in: [Array(bytes[..<cut]), Array(bytes[cut...])]) == whole, "the cut changes what is read")
    for request in whole.prefix(3) { answer(request, isOnThisMachine: first & 1 == 1) }
}

private struct Read: Equatable {
    var head: HTTPRequestHead
    var body = ByteBuffer()
}

/// The requests that come to their end.
private func requests(in parts: [[UInt8]]) -> [Read] {
    let channel = EmbeddedChannel()
    let decoder = ByteToMessageHandler(HTTPRequestDecoder(leftOverBytesStrategy: .dropBytes))
    guard (try? channel.pipeline.syncOperations.addHandler(decoder)) != nil else { return [] }
    var (done, current) = ([Read](), Read?.none)
    for part in parts {
        let isRead = (try? channel.writeInbound(ByteBuffer(bytes: part))) != nil
        while let part = try? channel.readInbound(as: HTTPServerRequestPart.self) {
            switch part {
            case .head(let head): current = Read(head: head)
            case .body(var bytes): current?.body.writeBuffer(&bytes)
            case .end:
                if let current { done.append(current) }
                current = nil
            }
        }
        guard isRead else { break }
    }
    _ = try? channel.finish(acceptAlreadyClosed: true)
    return done
}

private func answer(_ read: Read, isOnThisMachine: Bool) {
    guard let method = HTTPRequest.Method(read.head.method.rawValue) else { return }
    var fields = HTTPFields()
    for (name, value) in read.head.headers {
        guard let name = HTTPField.Name(name) else { return }
        fields.append(HTTPField(name: name, value: value))
    }
    let request = Request(
        head: HTTPRequest(
            method: method, scheme: "http", authority: fields[values: HTTPField.Name("host") ?? .accept].first,
            path: read.head.uri, headerFields: fields),
        body: RequestBody(buffer: read.body))
    let channel = EmbeddedChannel()
    // A channel that is not closed keeps itself.
    defer { _ = try? channel.finish(acceptAlreadyClosed: true) }
    channel.remoteAddress = try? SocketAddress(ipAddress: isOnThisMachine ? "127.0.0.1" : "10.0.0.9", port: 4000)
    let before = seen.counts
    let status = Inline.run { () async -> Int in
        do {
            return try await responder(request, channel).status.code
        } catch let error as any HTTPResponseError {
            return error.status.code
        } catch {
            return 0
        }
    }
    precondition((200..<600).contains(status), "a request is not answered")
    let authorization = fields[.authorization] ?? ""
    let path = read.head.uri.prefix { $0 != "?" && $0 != "#" }.split(separator: "/").joined(separator: "/")
    if seen.counts.drained > before.drained {
        precondition(method == .post && path == "v1/admin/drain", "\(method) of \(path) drains the node")
        precondition(isBearer(authorization, of: adminToken), "a node drains for \(authorization)")
    }
    if seen.counts.credentials > before.credentials {
        precondition(isOnThisMachine, "a token is looked at that crossed a network")
        precondition(path == "v1/relay/credentials", "\(path) gives credentials")
        precondition(isBearer(authorization, of: clientToken), "credentials are given for \(authorization)")
    }
    let announced = fields[.contentLength].map { Int($0) ?? .max } ?? 0
    let isOverBound = announced > bodyByteCountMax || fields[.transferEncoding] != nil
    precondition(!isOverBound || [400, 404, 405, 413].contains(status), "a body over the bound is taken: \(status)")
}

private func isBearer(_ header: String, of token: String) -> Bool {
    header.lowercased().hasPrefix("bearer ") && header.hasSuffix(" " + token)
}

// MARK: - Behind the routes

private final class Seen: Sendable {
    struct Counts {
        var drained = 0
        var credentials = 0
    }
    private let state = Mutex(Counts())
    var counts: Counts { state.withLock { $0 } }
    func drains() { state.withLock { $0.drained += 1 } }
    func givesCredentials() { state.withLock { $0.credentials += 1 } }
}

private let seen = Seen()
private let log = Logger(label: "fuzz", factory: { _ in SwiftLogNoOpLogHandler() })
private let status = NodeStatus(
    name: "n1", incarnation: 1, state: "up", addresses: .init(transport: "", clients: "", http: ""),
    shards: .init(owned: 0, standby: 0), sessions: .init(devices: 0, apps: 0), viewers: 0, channels: [], revision: 1,
    members: [], uptime_s: 1)
private let responder = HTTPRoutes(
    sources: HTTPSources(
        health: { NodeHealth(healthy: true, state: "up") }, status: { status }, metrics: { "a_metric 1\n" },
        authorizeAdmin: { token throws(ApusError) in
            guard token == adminToken else { throw ApusError(token == clientToken ? .notAllowed : .tokenInvalid) }
            return AuditActor(access: "admin", account: "local", role: "admin")
        }, drain: { () throws(ApusError) in seen.drains() }, clients: clients),
    configuration: configuration, logger: log, limited: LogLimiter(log)
).answers()

private let configuration: HTTPConfiguration = {
    var configuration = HTTPConfiguration(bind: HostPort(host: "127.0.0.1", port: 0))
    configuration.bodyByteCountMax = bodyByteCountMax
    return configuration
}()

private let clients: HTTPClients = {
    var api = ClientAPI()
    for schemas in [clientSchemas, serviceSchemas, callSchemas] { api.addSchemas(schemas) }
    api.on(ClientRelayCredentialsRequest.self) { _, _ throws(ApusError) in
        seen.givesCredentials()
        return ClientRelayCredentialsResponse()
    }
    api.on(ClientGetDeviceRequest.self) { request, _ throws(ApusError) in .with { $0.device = request.device } }
    api.on(ClientListShardsRequest.self) { _, _ throws(ApusError) in ClientListShardsResponse() }
    api.on(ClientRevokeTokensRequest.self) { _, _ throws(ApusError) in ClientRevokeTokensResponse() }
    var bounds = ClientAPIConfiguration()
    (bounds.requestsPerSecond, bounds.requestsPerSecondEach) = (1_000_000_000, 1_000_000_000)
    return HTTPClients(
        services: ClientServices(api, topics: nil, configuration: bounds, audit: AuditLog(log)),
        session: { token throws(ApusError) in
            guard token == clientToken, let access = AccessID(rawValue: "app"), let account = AccountID(rawValue: "a")
            else { throw ApusError(.tokenInvalid) }
            return Session(
                id: "-", role: .app, access: access, account: account, device: nil, sinceMilliseconds: 0,
                token: TokenMark(tag: 0, issuedAt: 0, expires: .max))
        })
}()

/// Runs tasks on the thread that waits for them: no input costs a change of threads, and none waits for the pool.
private final class Inline: TaskExecutor {
    private final class Box<Value: Sendable>: Sendable { let value = Mutex<Value?>(nil) }

    private let jobs = Mutex<[UnownedJob]>([])
    private let isReady = DispatchSemaphore(value: 0)

    func enqueue(_ job: consuming ExecutorJob) {
        let job = UnownedJob(job)
        jobs.withLock { $0.append(job) }
        isReady.signal()
    }

    static func run<Value: Sendable>(_ body: @escaping @Sendable () async -> Value) -> Value {
        let (executor, box) = (Inline(), Box<Value>())
        Task(executorPreference: executor) {
            let value = await body()
            box.value.withLock { $0 = value }
        }
        while true {
            if let value = box.value.withLock({ $0 }) { return value }
            executor.isReady.wait()
            executor.jobs.withLock { $0.removeFirst() }.runSynchronously(on: executor.asUnownedTaskExecutor())
        }
    }
}
