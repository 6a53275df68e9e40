package import ApusClientAPI
import ApusCluster
import ApusContract
package import ApusCore
import ApusCrypto
package import ApusSessions
package import ApusStorage
import CoreMetrics
import Foundation
import SwiftProtobuf
import Synchronization

/// A browser that has signed in.
package struct SignedInBrowser: Sendable {
    package var session: Session
    /// The value of its cookie: a secret.
    package var cookie: String
    /// How long the cookie is valid.
    package var seconds: Int64
}

/// Browsers that sign in, with a code or a token (docs/sign-in.md).
///
/// A code is made by an operator, and is a record until it is used or has expired: one browser can use it, once, at any
/// node. What a browser receives is a cookie with its session, sealed with the cluster's key. Every node reads it, and
/// none keeps it. To sign out revokes the tag of the sign-in, as tokens are revoked.
///
/// Concurrency model: any thread. A `Mutex` guards the limits of this node.
package final class SignInService: NodeService {
    package static let name = "Sign-in"
    package static let records = SignInRecords.catalogue

    private struct Limits {
        var codes: RateLimiter<Bool>
        var attempts: RateLimiter<Bool>
        var attemptsEach: RateLimiter<ExactText>
        var signIns: RateLimiter<AccountID>
    }

    private let configuration: SignInConfiguration
    private let stored: SignInRecords
    private let sessions: SessionService
    private let clock: ClusterClock
    private let limits: Mutex<Limits>
    private let signedIn = Counter(label: "apus_sign_ins_total", dimensions: [("result", "signed_in")])
    private let refused = Counter(label: "apus_sign_ins_total", dimensions: [("result", "refused")])
    private let limited = Counter(label: "apus_sign_ins_total", dimensions: [("result", "limited")])
    private let signedOut = Counter(label: "apus_sign_ins_total", dimensions: [("result", "signed_out")])

    /// 160 bits.
    private static let codeByteCount = 20
    /// The cookie names them, and browsers keep 4 KiB.
    private static let devicesMax = 24
    /// The longest text that is looked up.
    private static let codeTextMax = 64

    package init(_ configuration: SignInConfiguration, of node: NodeContext) throws(ApusError) {
        (self.configuration, sessions, clock) = (configuration, node.sessions, node.view.clock)
        stored = SignInRecords(store: node.records)
        let minute = Duration.seconds(60)
        let (all, each) = (configuration.attemptsPerMinute, configuration.attemptsPerMinuteEach)
        limits = Mutex(
            Limits(
                codes: RateLimiter(
                    configuration.codesPerMinute, per: minute, burst: configuration.codesPerMinute),
                attempts: RateLimiter(all, per: minute, burst: all),
                attemptsEach: RateLimiter(each, per: minute, burst: each),
                signIns: RateLimiter(
                    configuration.signInsPerHourEach, per: minute * 60, burst: configuration.signInsPerHourEach)))
        node.ports.provide(self)
    }

    package func add(to api: inout ClientAPI) {
        api.addSchemas(signInSchemas)
        api.on(ClientCreateSignInCodeRequest.self) { [self] request, call throws(ApusError) in
            try await makeCode(request, on: Authority(call.session))
        }
    }

    // MARK: - Codes

    private func makeCode(
        _ request: ClientCreateSignInCodeRequest, on authority: Authority
    ) async throws(ApusError) -> ClientCreateSignInCodeResponse {
        guard let role = Session.Role(rawValue: request.role), role == .app || role == .admin else {
            throw ApusError(.badParameter, "the role is app or admin")
        }
        guard role == .app || request.devices.isEmpty else {
            throw ApusError(.badParameter, "an operator's code is not for certain devices")
        }
        guard request.devices.count <= Self.devicesMax else {
            throw ApusError(.badParameter, "a code is for at most \(Self.devicesMax) devices")
        }
        let account = try AccountID(checking: request.account, "the account")
        let devices = try request.devices.map { text throws(ApusError) in
            try DeviceID(checking: text, "a device's id").rawValue
        }
        try take { $0.codes.take(true, at: $1) }
        var generator = SystemRandomNumberGenerator()
        let code = Hexadecimal.text(
            (0..<Self.codeByteCount).map { _ in UInt8.random(in: .min ... .max, using: &generator) })
        let now = clock.wallMilliseconds()
        try await stored.add(
            .with {
                $0.hash = Data(Self.hash(code))
                ($0.role, $0.account, $0.devices) = (role.rawValue, account.rawValue, devices)
                $0.restricted = !devices.isEmpty
                ($0.createdMs, $0.expiresMs) = (now, now + Int64(configuration.codeLifetime.milliseconds))
                ($0.makerAccount, $0.makerIdentities) = (authority.account.rawValue, authority.identities)
                ($0.tokenTag, $0.tokenIssuedS) = (authority.token.tag, authority.token.issuedAt)
                $0.tokenExpiresS = authority.token.expires
            }, expiredBefore: now)
        return .with {
            $0.code = code
            $0.expiresInSeconds = UInt32(clamping: configuration.codeLifetime.components.seconds)
        }
    }

    private static func hash(_ code: String) -> [UInt8] { SHA256.hash(data: Array(code.utf8)) }

    // MARK: - Browsers

    /// Counts an attempt to sign in, before anything is read or verified for it.
    ///
    /// - Parameter source: the address.
    /// - Throws: 10007.
    package func takeAttempt(from source: String) throws(ApusError) {
        try take { $0.attemptsEach.take(ExactText(source), at: $1) && $0.attempts.take(true, at: $1) }
    }

    /// Signs a browser in with a code, which is used then.
    ///
    /// - Throws: 12001 if the code is not known, was used or has expired, or the token of the operator who has made it
    ///   was revoked; 10007 after too many sign-ins of the account; 10021 if the records cannot be read.
    package func signIn(code: String) async throws(ApusError) -> SignedInBrowser {
        guard code.utf8.count <= Self.codeTextMax, let known = try await stored.take(Self.hash(code)),
            known.expiresMs > clock.wallMilliseconds(), let role = Session.Role(rawValue: known.role)
        else { throw refuse(ApusError(.tokenInvalid, "the code is not valid: it was used, or it has expired")) }
        do throws(ApusError) {
            try sessions.check(known.authority)
        } catch {
            throw refuse(error)
        }
        let now = clock.wallSeconds()
        let tag = Self.tag()
        var session = Session(
            id: "-", role: role, access: AccessID(unchecked: "web-\(String(tag, radix: 36))"),
            account: AccountID(unchecked: known.account), device: nil,
            allowedDevices: known.restricted ? known.devices.map { DeviceID(unchecked: $0) } : nil,
            sinceMilliseconds: 0,
            token: TokenMark(tag: tag, issuedAt: now, expires: now + configuration.lifetime.components.seconds))
        session.signIn = tag
        return try browser(session)
    }

    /// Signs a browser in with a token, for as long as the token is valid, but not longer than `sign_in.lifetime`.
    ///
    /// - Parameter bearer: of the token, which is valid.
    /// - Throws: 12004 for a token of another role than app and admin; 10007 after too many sign-ins of the account.
    package func signIn(bearer: Session) throws(ApusError) -> SignedInBrowser {
        guard bearer.role == .app || bearer.role == .admin else {
            throw refuse(ApusError(.notAllowed, "a token of role \(bearer.role.rawValue) does not sign a browser in"))
        }
        var session = bearer
        session.signIn = Self.tag()
        let seconds = bearer.token.seconds(of: configuration.lifetime, at: clock.wallSeconds())
        session.token.expires = clock.wallSeconds() + seconds
        guard seconds > 0 else { throw refuse(ApusError(.tokenExpired)) }
        return try browser(session)
    }

    private func browser(_ session: Session) throws(ApusError) -> SignedInBrowser {
        try take { $0.signIns.take(session.account, at: $1) }
        let bytes = try sessions.cookie(of: session)
        guard bytes.count <= TicketSealer.byteCountMax else {
            throw ApusError(.badParameter, "the token names too many devices for a cookie")
        }
        let cookie = Self.text(of: bytes)
        signedIn.increment()
        return SignedInBrowser(
            session: session, cookie: cookie, seconds: max(0, session.token.expires - clock.wallSeconds()))
    }

    /// The browser of a cookie.
    ///
    /// - Throws: 12001 if the cookie is not valid, or the browser has signed out; 12002 if it has expired.
    package func browser(of cookie: String) throws(ApusError) -> Session {
        guard cookie.utf8.count <= Self.cookieTextMax, let bytes = Self.bytes(of: cookie) else {
            throw ApusError(.tokenInvalid, "the cookie is not valid")
        }
        return try sessions.browser(of: bytes)
    }
    /// A ticket has at most 2,048 bytes.
    private static let cookieTextMax = 3072

    /// Signs a browser out everywhere: the cookie is refused, and what was opened with it ends, at this node at once,
    /// at the others within a second. Durable on return.
    ///
    /// - Throws: 10007 if too many revocations exist, 10021 if the records cannot be written.
    package func signOut(_ browser: Session) async throws(ApusError) {
        try await sessions.signOut(browser)
        signedOut.increment()
    }

    // MARK: - Parts

    private static func tag() -> UInt64 {
        var generator = SystemRandomNumberGenerator()
        return .random(in: 1 ... .max, using: &generator)
    }

    /// Base64 for addresses and cookies (RFC 4648 §5), without padding.
    private static func text(of bytes: [UInt8]) -> String {
        Data(bytes).base64EncodedString().replacingOccurrences(of: "+", with: "-")
            .replacingOccurrences(of: "/", with: "_").replacingOccurrences(of: "=", with: "")
    }

    private static func bytes(of text: String) -> [UInt8]? {
        let plain = text.replacingOccurrences(of: "-", with: "+").replacingOccurrences(of: "_", with: "/")
        let padding = String(repeating: "=", count: (4 - plain.utf8.count % 4) % 4)
        return Data(base64Encoded: plain + padding).map { Array($0) }
    }

    private func refuse(_ error: ApusError) -> ApusError {
        refused.increment()
        return error
    }

    private func take(_ body: (inout Limits, MonotonicTime) -> Bool) throws(ApusError) {
        let now = MonotonicTime.now()
        guard limits.withLock({ body(&$0, now) }) else {
            limited.increment()
            throw ApusError(.overloaded, "there are too many sign-ins; try again in a minute")
        }
    }
}

extension SignInStoredCode {
    /// The operator's who has made the code.
    fileprivate var authority: Authority {
        Authority(
            account: AccountID(unchecked: makerAccount), identities: makerIdentities,
            token: TokenMark(tag: tokenTag, issuedAt: tokenIssuedS, expires: tokenExpiresS))
    }
}
