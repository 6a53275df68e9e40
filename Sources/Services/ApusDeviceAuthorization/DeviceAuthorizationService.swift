package import ApusClientAPI
import ApusCluster
import ApusContract
package import ApusCore
import ApusCrypto
import ApusSessions
package import ApusStorage
import ApusThings
import CoreMetrics
import Foundation
import SwiftProtobuf
import Synchronization

/// The codes that a device has received, and what it shows (RFC 8628 §3.2).
package struct DeviceCodes: Sendable, Hashable {
    package var deviceCode: String
    package var userCode: String
    package var expiresIn: Duration
    package var interval: Duration
    /// The address of the page, as the configuration has it; empty: that of the request.
    package var url: String
}

/// The tokens that a device receives (RFC 6749 §5.1).
package struct DeviceTokens: Sendable, Hashable {
    package var token: String
    package var refreshToken: String
    package var expiresIn: Duration
}

/// Why a device receives no token, as RFC 6749 §5.2 and RFC 8628 §3.5 name it.
package enum DeviceRefusal: String, Error, Sendable, Hashable {
    case authorizationPending = "authorization_pending"
    case slowDown = "slow_down"
    case accessDenied = "access_denied"
    case expiredToken = "expired_token"
    case invalidGrant = "invalid_grant"
    case invalidClient = "invalid_client"
}

/// Devices that ask for a token with a user code (RFC 8628, VA-3, VA-4, docs/voice.md).
///
/// A device that has no token receives two codes. It asks with the first one for its token, and shows the second one.
/// An account that types the second one binds the device, and the device receives a token and a refresh token. Codes
/// and grants are records, so any node answers any question about them.
///
/// Concurrency model: any thread. A `Mutex` guards the limits of this node.
package final class DeviceAuthorizationService: NodeService {
    package static let name = "Device authorization"
    package static let records = DeviceAuthorizationRecords.catalogue

    private struct Limits {
        var codes: RateLimiter<Bool>
        var codesEach: RateLimiter<ExactText>
        var attempts: RateLimiter<AccountID>
        var attemptsEach: RateLimiter<ExactText>
        var pace: PollPace
    }

    let configuration: DeviceAuthorizationConfiguration
    let records: DeviceAuthorizationRecords
    let sessions: SessionService
    private let devices: SessionRecords
    private let products: ProductRecords
    private let issuer: TokenIssuer
    let clock: ClusterClock
    private let limits: Mutex<Limits>
    private let requested = Counter(label: "apus_authorizations_total", dimensions: [("result", "requested")])
    let approved = Counter(label: "apus_authorizations_total", dimensions: [("result", "approved")])
    let refused = Counter(label: "apus_authorizations_total", dimensions: [("result", "refused")])
    private let issued = Counter(label: "apus_authorization_tokens_total", dimensions: [("grant", "device_code")])
    private let refreshed = Counter(label: "apus_authorization_tokens_total", dimensions: [("grant", "refresh_token")])
    private let copied = Counter(label: "apus_authorization_copied_total")
    private let limited = Counter(label: "apus_authorization_limited_total")

    /// The attempts to find letters that no other code has.
    private static let attemptsMax = 4

    package init(_ configuration: DeviceAuthorizationConfiguration, of node: NodeContext) throws(ApusError) {
        (self.configuration, sessions, clock) = (configuration, node.sessions, node.view.clock)
        records = DeviceAuthorizationRecords(store: node.records)
        (devices, products) = (SessionRecords(node.records), ProductRecords(node.records))
        issuer = try node.ports.one(TokenIssuer.self)
        let minute = Duration.seconds(60)
        let (all, each) = (configuration.codesPerMinute, configuration.codesPerMinuteEach)
        let attempts = configuration.attemptsPerMinute
        limits = Mutex(
            Limits(
                codes: RateLimiter(all, per: minute, burst: all),
                codesEach: RateLimiter(each, per: minute, burst: each),
                attempts: RateLimiter(attempts, per: minute, burst: attempts),
                attemptsEach: RateLimiter(attempts, per: minute, burst: attempts),
                pace: PollPace(interval: configuration.pollInterval, lifetime: configuration.codeLifetime)))
        node.ports.provide(self)
    }

    package func add(to api: inout ClientAPI) {
        api.addSchemas(authorizationSchemas)
        addRequests(to: &api)
    }

    // MARK: - The device

    /// Makes codes for a device (RFC 8628 §3.1).
    ///
    /// - Parameters:
    ///   - client: `CUSTOMER/PRODUCT` of a product that was put (docs/things.md); the customer is `-` for products of
    ///     the operator.
    ///   - source: the address, with which its requests are counted.
    /// - Throws: ``DeviceRefusal/invalidClient`` for an unknown client, 21031 for an id that is none, 10007 over a
    ///   limit, 21025 if this node has no key to sign tokens with, 10021 if the records cannot be written.
    package func begin(
        client: String, device text: String, from source: String
    ) async throws(ApusError) -> Result<DeviceCodes, DeviceRefusal> {
        let device = try DeviceID(checking: text, "device_id")
        try DeviceAuthorizationService.check(device)
        guard issuer.canSign else { throw Self.noKey }
        // Before the records are read, for what anybody may cause.
        try take { $0.codesEach.take(ExactText(source), at: $1) && $0.codes.take(true, at: $1) }
        guard let product = Self.product(client),
            try await products.product(product.id, of: product.customer) != nil
        else { return .failure(.invalidClient) }
        var generator = SystemRandomNumberGenerator()
        let now = milliseconds
        let lifetime = Int64(configuration.codeLifetime.milliseconds)
        for _ in 0..<Self.attemptsMax {
            let deviceCode = DeviceCode(UserCode(using: &generator), using: &generator)
            let code = AuthorizationStoredCode.with {
                ($0.userCode, $0.deviceCodeHash) = (deviceCode.userCode.letters, Data(Self.hash(deviceCode)))
                ($0.client, $0.device) = (client, device.rawValue)
                ($0.createdMs, $0.expiresMs) = (now, now + lifetime)
            }
            // A device that asks about an expired code hears that it has expired, for as long again.
            guard try await records.add(code, expiredBefore: now - lifetime) else { continue }
            requested.increment()
            return .success(
                DeviceCodes(
                    deviceCode: deviceCode.text, userCode: deviceCode.userCode.description,
                    expiresIn: configuration.codeLifetime, interval: configuration.pollInterval,
                    url: configuration.url))
        }
        throw ApusError(.overloaded, "no code is free")
    }

    /// The token of a device whose code was approved (RFC 8628 §3.4). The code is used then.
    ///
    /// - Throws: 21025 if this node has no key to sign tokens with, 10007 and 10021 if the records cannot be written.
    package func token(
        deviceCode text: String, client: String
    ) async throws(ApusError) -> Result<DeviceTokens, DeviceRefusal> {
        guard let deviceCode = DeviceCode(text) else { return .failure(.invalidGrant) }
        let hash = Self.hash(deviceCode)
        guard let known = try await records.code(deviceCode.userCode),
            ConstantTime.isEqual(hash, Array(known.deviceCodeHash)), known.client.isExactly(client)
        else { return .failure(.invalidGrant) }
        let mark = hash.prefix(8).reduce(0) { $0 << 8 | UInt64($1) }
        let poll = DeviceCodeStateMachine(known).poll(at: milliseconds)
        guard case .approved = poll else {
            // A code that was decided is asked about once more at most.
            let isInTime = limits.withLock { limits in
                defer { if poll != .pending { limits.pace.forget(mark) } }
                return poll != .pending || limits.pace.poll(mark, at: .now())
            }
            return .failure(isInTime ? Self.refusal(poll) : .slowDown)
        }
        var outcome: Result<DeviceTokens, DeviceRefusal> = .failure(.invalidGrant)
        _ = try await records.change(deviceCode.userCode) { machine throws(ApusError) in
            guard ConstantTime.isEqual(hash, Array(machine.code.deviceCodeHash)),
                case .approved(let approver) = machine.poll(at: milliseconds)
            else {
                outcome = .failure(Self.refusal(machine.poll(at: milliseconds)))
                return nil
            }
            guard let since = try await permission(approver, machine.code.device) else {
                outcome = .failure(.accessDenied)
                return nil
            }
            let grant = self.grant(for: machine.code, account: approver.account, since: since)
            outcome = .success(try tokens(grant))
            machine.use()
            return grant
        }
        if case .success = outcome {
            issued.increment()
            limits.withLock { $0.pace.forget(mark) }
            try? await records.removeGrants(expiredBefore: seconds)
        }
        return outcome
    }

    /// The next token of a device (RFC 6749 §6).
    ///
    /// - Throws: as ``token(deviceCode:client:)``.
    package func refresh(
        token text: String, client: String
    ) async throws(ApusError) -> Result<DeviceTokens, DeviceRefusal> {
        guard let token = try? sessions.refreshToken(of: text) else { return .failure(.invalidGrant) }
        guard issuer.canSign else { throw Self.noKey }
        guard let record = try await devices.record(of: token.device), record.account == token.account,
            token.issuedAt >= record.tokensAfter
        else { return .failure(.invalidGrant) }
        let now = seconds
        let expires = now + configuration.refreshLifetime.components.seconds
        var refresh = GrantStateMachine.Refresh.refused
        let changed = try await records.changeGrant(of: token.device) { grant throws(ApusError) in
            var machine = GrantStateMachine(grant)
            refresh =
                grant.map { $0.client.isExactly(client) } ?? false
                ? machine.refresh(
                    grant: token.grant, generation: token.generation, account: token.account, at: now, expires: expires)
                : .refused
            // Whoever has the copy may have a token too. The grant is there until its tokens are revoked, so that a
            // repetition revokes them if this node dies.
            if refresh == .copied { try await revoke(token.grant, at: now) }
            return machine.grant
        }
        switch refresh {
        case .renewed:
            guard let grant = changed.after else { return .failure(.invalidGrant) }
            let tokens = try tokens(grant)
            refreshed.increment()
            return .success(tokens)
        case .copied:
            copied.increment()
            return .failure(.invalidGrant)
        case .refused: return .failure(.invalidGrant)
        }
    }

    // MARK: - Parts

    /// Ends the tokens of a grant. Customers and devices share a part of the revocations that there may be.
    private func revoke(_ grant: String, at now: Int64) async throws(ApusError) {
        let subject = RevocationRecord.Subject.token(TokenMark.tag(of: grant))
        let keep = configuration.tokenLifetime.components.seconds + TokenVerifier.leewaySeconds
        try await devices.revoke(
            RevocationRecord(subject, expires: now + keep), wallSeconds: now, countMax: RevocationRecord.countMax / 2)
    }

    /// All tokens of a grant were issued when it was made, and only their ends differ: a revocation or an unbinding
    /// ends them, whenever they are refreshed.
    private func tokens(_ grant: AuthorizationStoredGrant) throws(ApusError) -> DeviceTokens {
        let (device, account) = (DeviceID(unchecked: grant.device), AccountID(unchecked: grant.account))
        let age = Duration.seconds(max(0, seconds - grant.createdS))
        let refresh = RefreshToken(
            device: device, account: account, grant: grant.grant, generation: grant.generation,
            issuedAt: grant.createdS, lifetime: age + configuration.refreshLifetime)
        return DeviceTokens(
            token: try issuer.token(
                of: device, account: account, id: grant.grant, at: grant.createdS,
                lifetime: age + configuration.tokenLifetime),
            refreshToken: try issuer.text(of: refresh), expiresIn: configuration.tokenLifetime)
    }

    /// - Parameter since: when the device was bound. It refuses tokens that were issued before that.
    private func grant(
        for code: AuthorizationStoredCode, account: String, since: Int64
    ) -> AuthorizationStoredGrant {
        let now = seconds
        return .with {
            ($0.device, $0.account, $0.client) = (code.device, account, code.client)
            ($0.grant, $0.generation, $0.createdS, $0.renewedS) = (UUID().uuidString, 1, max(now, since), now)
            $0.expiresS = now + configuration.refreshLifetime.components.seconds
        }
    }

    /// Checks what an approval needs when the token is issued (docs/authority.md).
    ///
    /// - Returns: the time since when tokens of the device are valid, in Unix seconds; nil if the approver has lost the
    ///   device, or the token with which it was approved was revoked.
    private func permission(_ approver: AuthorizationApprover, _ device: String) async throws(ApusError) -> Int64? {
        let account = AccountID(unchecked: approver.account)
        do throws(ApusError) { try sessions.check(Authority(approver)) } catch { return nil }
        guard let record = try await devices.record(of: DeviceID(unchecked: device)), record.account == account else {
            return nil
        }
        return record.tokensAfter
    }

    /// Counts an attempt to use a user code.
    ///
    /// - Parameter source: the address; nil for a client that has a token, which counts for its account.
    /// - Throws: 10007.
    package func takeAttempt(_ source: String?, of account: AccountID?) throws(ApusError) {
        try take { limits, now in
            (source.map { limits.attemptsEach.take(ExactText($0), at: now) } ?? true)
                && (account.map { limits.attempts.take($0, at: now) } ?? true)
        }
    }

    private func take(_ body: (inout Limits, MonotonicTime) -> Bool) throws(ApusError) {
        let now = MonotonicTime.now()
        guard limits.withLock({ body(&$0, now) }) else {
            limited.increment()
            throw ApusError(.overloaded, "too many codes are asked for; try again in a minute")
        }
    }

    private static func refusal(_ poll: DeviceCodeStateMachine.Poll) -> DeviceRefusal {
        switch poll {
        case .pending: .authorizationPending
        case .refused: .accessDenied
        case .expired: .expiredToken
        case .used, .approved: .invalidGrant
        }
    }

    /// The parts of `CUSTOMER/PRODUCT`; nil for another text. The customer is empty for products of the operator.
    private static func product(_ client: String) -> (customer: String, id: ProductID)? {
        let parts = client.parts(separatedBy: "/")
        guard parts.count == 2, let id = ProductID(rawValue: parts[1]) else { return nil }
        if parts[0] == CustomerID.none { return ("", id) }
        return CustomerID(rawValue: parts[0]).map { ($0.rawValue, id) }
    }

    private static func check(_ device: DeviceID) throws(ApusError) {
        guard !ChannelOwner.isReserved(device) else {
            throw ApusError(.badParameter, "the id of the device is one of a call")
        }
    }

    private static func hash(_ code: DeviceCode) -> [UInt8] { SHA256.hash(data: Array(code.text.utf8)) }

    private static var noKey: ApusError {
        ApusError(.unavailable, "this node has no key to sign tokens with (keys.token_private)")
    }

    var milliseconds: Int64 { clock.wallMilliseconds() }
    private var seconds: Int64 { clock.wallSeconds() }
}

extension Authority {
    /// Of the client that has decided about a code.
    fileprivate init(_ approver: AuthorizationApprover) {
        self.init(
            account: AccountID(unchecked: approver.account), identities: approver.identities,
            token: TokenMark(
                tag: approver.tokenTag, issuedAt: approver.tokenIssuedS, expires: approver.tokenExpiresS))
    }
}

extension AuthorizationApprover {
    init(_ authority: Authority) {
        self.init()
        (account, identities) = (authority.account.rawValue, authority.identities)
        (tokenTag, tokenIssuedS, tokenExpiresS) = (
            authority.token.tag, authority.token.issuedAt, authority.token.expires
        )
    }
}
