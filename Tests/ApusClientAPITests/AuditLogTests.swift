import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import ApusWire
import Logging
import NIOCore
import SwiftProtobuf
import Synchronization
import Testing

@Suite("The audit log (D13)")
struct AuditLogTests {
    /// The lines of a log.
    private final class Lines: Sendable {
        let lines = Mutex<[Logger.Metadata]>([])

        var audit: AuditLog {
            AuditLog(Logger(label: "test") { _ in Handler(lines: self) })
        }

        /// A fact of each line; empty where a line has none.
        func facts(_ key: String) -> [String] {
            lines.withLock { $0.map { "\($0[key] ?? "")" } }
        }
    }

    private struct Handler: LogHandler {
        let lines: Lines
        var metadata: Logger.Metadata = [:]
        var logLevel = Logger.Level.info

        subscript(metadataKey key: String) -> Logger.Metadata.Value? {
            get { metadata[key] }
            set { metadata[key] = newValue }
        }

        func log(event: LogEvent) { lines.lines.withLock { $0.append(event.metadata ?? [:]) } }
    }

    private static func session(_ role: Session.Role, _ access: String = "ann", account: String = "a") -> Session {
        Session(
            id: "-", role: role, access: AccessID(unchecked: access), account: AccountID(unchecked: account),
            device: nil, sinceMilliseconds: 0, token: TokenMark(tag: 0, issuedAt: 0, expires: .max))
    }

    private func carryOut<M: ClientRequestMessage & BoundedMessage>(
        _ request: M, _ session: Session, _ lines: Lines, refusal: ApusError? = nil
    ) async throws {
        var api = ClientAPI()
        api.on(M.self) { _, _ throws(ApusError) in
            if let refusal { throw refusal }
            return M.Reply()
        }
        let services = ClientServices(
            api, topics: nil, configuration: ClientAPIConfiguration(), audit: lines.audit)
        let operation = try api.operation(number: M.info.number)
        let work = try operation.read(ByteBuffer(bytes: try request.serializedBytes() as [UInt8]), .binary)
        _ = await services.carryOut(operation, work, ClientCall(session: session, deadline: .now() + .seconds(1)))
    }

    @Test("A change has one line with the actor, the target and the result")
    func line() async throws {
        let lines = Lines()
        let share = ClientShareDeviceRequest.with { ($0.device, $0.account, $0.control) = ("cam", "ben", true) }
        try await carryOut(share, Self.session(.customer, "key-1", account: "acme"), lines)
        try await carryOut(
            ClientUnshareDeviceRequest.with { ($0.device, $0.account) = ("cam", "ben") }, Self.session(.app), lines,
            refusal: ApusError(.illegalRelation))
        #expect(lines.facts("audit") == ["devices.share", "devices.unshare"])
        #expect(lines.facts(LogKey.access) == ["key-1", "ann"] && lines.facts(LogKey.account) == ["acme", "a"])
        #expect(lines.facts(LogKey.role) == ["customer", "app"])
        #expect(lines.facts(LogKey.target) == ["account=ben device=cam control=true", "account=ben device=cam"])
        #expect(lines.facts(LogKey.code) == ["", "8003"])
    }

    @Test("Secrets and names of people are in no line")
    func secrets() async throws {
        let lines = Lines()
        try await carryOut(
            ClientPutHookRequest.with {
                ($0.customer, $0.hook, $0.url) = ("acme", "orders", "https://example.org/?token=s3cret")
            }, Self.session(.admin), lines)
        try await carryOut(
            ClientRegisterUserRequest.with { ($0.customer, $0.externalID) = ("acme", "anna@example.org") },
            Self.session(.admin), lines)
        try await carryOut(
            ClientSetGreetingRequest.with { ($0.device, $0.data) = ("bell", .init(repeating: 7, count: 1000)) },
            Self.session(.admin), lines)
        #expect(lines.facts(LogKey.target) == ["customer=acme hook=orders", "customer=acme", "device=bell"])
    }

    @Test("Every change by an operator or a customer's key has its line, and refusals are limited for each account")
    func limits() {
        let (lines, start) = (Lines(), MonotonicTime(nanoseconds: 1_000_000_000))
        let audit = lines.audit
        func note(_ role: Session.Role, _ account: String, _ error: ApusError?, after: Duration = .zero) {
            audit.note(
                "nodes.drain", target: "", by: AuditActor(Self.session(role, account: account)), error,
                now: start + after)
        }
        for _ in 0..<4800 { note(.app, "loud", ApusError(.notAllowed)) }
        #expect(lines.facts("audit").count == AuditLog.refusalsMax)
        // The line of another account is not lost, and neither is any change of an operator.
        note(.app, "quiet", ApusError(.notAllowed))
        #expect(lines.facts(LogKey.account).last == "quiet" && lines.facts(LogKey.leftOut).last == "4790")
        for role: Session.Role in [.admin, .customer] { for _ in 0..<1000 { note(role, "loud", nil) } }
        #expect(lines.facts("audit").count == AuditLog.refusalsMax + 1 + 2000)
        // An app that was refused often cannot hide what it changes by that.
        for _ in 0..<100 { note(.app, "loud", nil) }
        #expect(lines.facts("audit").count == AuditLog.refusalsMax + 1 + 2000 + AuditLog.changesMax)
        note(.app, "loud", nil, after: .seconds(61))
        let count = lines.facts("audit").count
        #expect(count == AuditLog.refusalsMax + 1 + 2000 + AuditLog.changesMax + 1)
        // Thousands of accounts together do not fill a disk either.
        for account in 0..<4000 { note(.app, "\(account)", ApusError(.notAllowed), after: .seconds(62)) }
        #expect(lines.facts("audit").count <= count + AuditLog.refusalsMax * AuditLog.accountsOfAll)
    }

    @Test("A change that may have been made has its line, however often its actor was refused before")
    func uncertain() {
        let lines = Lines()
        let (audit, actor) = (lines.audit, AuditActor(Self.session(.customer, account: "acme")))
        for _ in 0..<100 { audit.note("devices.transfer", target: "", by: actor, ApusError(.notAllowed)) }
        for code: ErrorCode in [.cancelled, .deadlineExceeded, .linkLost, .answerTimedOut] {
            audit.note("devices.transfer", target: "", by: actor, ApusError(code))
        }
        #expect(lines.facts(LogKey.code).suffix(4) == ["10006", "10005", "10008", "21002"])
        #expect(lines.facts("audit").count == AuditLog.refusalsMax + 4)
    }

    @Test("Every request by which an operator or an integrator changes something is audited")
    func changes() {
        // The parts of an image: what they make is sealed, which is audited.
        let parts = ["firmware.upload"]
        for info in ClientRequests.all where !info.roles.isDisjoint(with: [.admin, .customer]) {
            guard let method = info.path?.method, !parts.contains(info.name) else { continue }
            #expect(info.isAudited == (method != .get), "\(info.name)")
        }
    }
}
