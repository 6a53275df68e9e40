import ApusContract
package import ApusCore
package import ApusSessions
package import ApusStorage
import CoreMetrics
import Foundation
import SwiftProtobuf

// Integrators, their users, and access to devices (IV-A1 to IV-A3, docs/accounts.md). Operators make these requests for
// any customer, and a customer for itself.

extension ClientAPI {
    /// Adds the requests of integrators and about them.
    ///
    /// - Parameters:
    ///   - signing: without a key where this node has none to sign with; a token cannot be issued here then (21025).
    ///   - wallSeconds: the cluster's time, in Unix seconds.
    package mutating func addAccountRequests(
        _ sessions: SessionService, records: any RecordStore, signing: TokenSigning, cluster: ClusterID,
        configuration: AccountConfiguration, wallSeconds: @escaping @Sendable () -> Int64
    ) {
        let accounts = Accounts(
            sessions: sessions, records: SessionRecords(records), signing: signing, cluster: cluster,
            configuration: configuration, wallSeconds: wallSeconds)
        addCustomerRequests(accounts)
        on(ClientRegisterUserRequest.self) { request, call throws(ApusError) in
            try await accounts.register(request, call)
        }
        on(ClientListUsersRequest.self) { request, call throws(ApusError) in try await accounts.list(request, call) }
        on(ClientAuthorizeUserRequest.self) { request, call throws(ApusError) in
            try await accounts.authorize(request, call)
        }
        on(ClientRevokeUserRequest.self) { request, call throws(ApusError) in
            let user = try await accounts.user(request.user, call)
            try await accounts.revoke(.account(user.user, issuedBefore: wallSeconds() + 1), of: user)
            // Times of issue are in seconds: a token that is issued after the answer is valid.
            try? await Task.sleep(for: .seconds(1))
            return ClientRevokeUserResponse()
        }
        on(ClientGrantAccessRequest.self) { request, call throws(ApusError) in try await accounts.grant(request, call) }
        on(ClientRevokeAccessRequest.self) { request, call throws(ApusError) in
            let user = try await accounts.user(request.user, call)
            let access = try AccessID(checking: request.access, "the access id")
            try await accounts.revoke(
                .identity(access.rawValue, user.user, issuedBefore: wallSeconds() + 1), of: user)
            return ClientRevokeAccessResponse()
        }
    }

    private mutating func addCustomerRequests(_ accounts: Accounts) {
        let records = accounts.records
        on(ClientCreateCustomerRequest.self) { request, _ throws(ApusError) in
            let customer = try CustomerID(checking: request.customer, "the customer")
            let now = accounts.wallSeconds()
            return ClientCustomer(try await records.createCustomer(customer, wallSeconds: now), now: now)
        }
        on(ClientListCustomersRequest.self) { request, _ throws(ApusError) in
            let last = try request.pageToken.isEmpty ? nil : CustomerID(checking: request.pageToken, "pageToken")
            let limit = Int(min(request.pageSize == 0 ? 100 : request.pageSize, 500))
            let found = try await records.customers(after: last, limit: limit)
            return .with {
                $0.customers = found.map { ClientCustomer($0, now: accounts.wallSeconds()) }
                if found.count == limit { $0.nextPageToken = found.last?.customer.rawValue ?? "" }
            }
        }
        on(ClientIssueKeyRequest.self, orderKey: { $0.customer }) { request, call throws(ApusError) in
            try await accounts.issueKey(request, call)
        }
        on(ClientRevokeKeyRequest.self, orderKey: { $0.customer }) { request, call throws(ApusError) in
            let customer = try accounts.customer(named: request.customer, call)
            try await records.revokeKey(request.id, of: customer, now: accounts.wallSeconds())
            return ClientRevokeKeyResponse()
        }
        on(ClientAssignDeviceRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            let device = try DeviceID(checking: request.device, "the device's id")
            let customer = try request.customer.isEmpty ? nil : CustomerID(checking: request.customer, "the customer")
            try await accounts.sessions.relate(device, .assign(customer), for: call.session)
            return ClientAssignDeviceResponse()
        }
        on(ClientDisableDeviceRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            let device = try DeviceID(checking: request.device, "the device's id")
            guard request.hasDisabled else { throw ApusError(.badParameter, "disabled is missing") }
            try await accounts.sessions.relate(device, .disable(request.disabled), for: call.session)
            return ClientDisableDeviceResponse()
        }
        on(ClientBindDeviceRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            try await accounts.bind(request, call)
        }
        on(ClientAuthorizeDeviceRequest.self) { request, call throws(ApusError) in
            try await accounts.authorize(request, call)
        }
    }
}

/// What the requests of integrators share.
private struct Accounts: Sendable {
    static let day: Int64 = 86_400

    let sessions: SessionService
    let records: SessionRecords
    let signing: TokenSigning
    let cluster: ClusterID
    let configuration: AccountConfiguration
    let wallSeconds: @Sendable () -> Int64
    /// Requests that were refused because of a bound of a customer.
    private let refused = Counter(label: "apus_accounts_refused_total")

    init(
        sessions: SessionService, records: SessionRecords, signing: TokenSigning, cluster: ClusterID,
        configuration: AccountConfiguration, wallSeconds: @escaping @Sendable () -> Int64
    ) {
        (self.sessions, self.records, self.signing, self.cluster) = (sessions, records, signing, cluster)
        (self.configuration, self.wallSeconds) = (configuration, wallSeconds)
    }

    // MARK: - Who asks

    /// The customer that a request names. A customer may name itself only.
    /// - Throws: 12004 for another customer, 21031 for an invalid name.
    func customer(named name: String, _ call: ClientCall) throws(ApusError) -> CustomerID {
        guard let customer = try call.customer(named: name) else {
            throw ApusError(.badParameter, "the request is about a customer")
        }
        return customer
    }

    /// The user that a request names.
    /// - Throws: 8002 if it does not exist, or is another customer's: the answer does not reveal which.
    func user(_ name: String, _ call: ClientCall) async throws(ApusError) -> UserRecord {
        let account = try AccountID(checking: name, "the user")
        guard let user = try await records.user(account),
            call.session.role == .admin || user.customer.rawValue == call.session.account.rawValue
        else { throw ApusError(.targetUnknown, "no such user") }
        return user
    }

    // MARK: - Keys and users

    func issueKey(_ request: ClientIssueKeyRequest, _ call: ClientCall) async throws(ApusError)
        -> ClientIssueKeyResponse
    {
        let customer = try customer(named: request.customer, call)
        let now = wallSeconds()
        let seconds = request.lifetimeSeconds == 0 ? 365 * Self.day : request.lifetimeSeconds
        let id = UUID().uuidString
        let claims = TokenClaims(
            access: AccessID(unchecked: "key-\(id.prefix(8))"), account: AccountID(unchecked: customer.rawValue),
            role: .customer, issuedAt: now, lifetime: .seconds(seconds), cluster: cluster, id: id)
        // A key that was not noted could not be listed, so it is signed first and noted before it is given out.
        let key = try sign(claims)
        try await refused.countingRefusals { () async throws(ApusError) in
            try await records.addKey(
                CustomerRecord.Key(id: id, issued: now, expires: claims.exp), of: customer, now: now)
        }
        return .with { ($0.key, $0.id, $0.expires) = (key, id, claims.exp) }
    }

    func register(_ request: ClientRegisterUserRequest, _ call: ClientCall) async throws(ApusError) -> ClientUser {
        let customer = try customer(named: request.customer, call)
        let scalars = request.externalID.unicodeScalars
        guard (1...256).contains(scalars.count), scalars.allSatisfy({ $0.value > 0x1f && $0.value != 0x7f }) else {
            throw ApusError(.badParameter, "externalId has 1 to 256 characters, and no control characters")
        }
        return try await refused.countingRefusals { () async throws(ApusError) in
            ClientUser(
                try await records.registerUser(
                    request.externalID, of: customer, usersMax: configuration.usersMax, wallSeconds: wallSeconds()))
        }
    }

    func list(_ request: ClientListUsersRequest, _ call: ClientCall) async throws(ApusError) -> ClientListUsersResponse
    {
        let customer = try customer(named: request.customer, call)
        let last = try request.pageToken.isEmpty ? nil : AccountID(checking: request.pageToken, "pageToken")
        let limit = Int(min(request.pageSize == 0 ? 100 : request.pageSize, 500))
        let found = try await records.users(of: customer, after: last, limit: limit)
        return .with {
            $0.users = found.map { ClientUser($0) }
            if found.count == limit { $0.nextPageToken = found.last?.user.rawValue ?? "" }
        }
    }

    /// Revokes tokens of a customer's user. The revocation is kept for as long as its tokens can be valid.
    func revoke(_ subject: RevocationRecord.Subject, of user: UserRecord) async throws(ApusError) {
        let (now, keep) = (wallSeconds(), configuration.revocationTime.components.seconds + 60)
        try await refused.countingRefusals { () async throws(ApusError) in
            try await records.noteRevocation(
                by: user.customer, max: configuration.revocationsMax, window: keep, now: now)
            try await records.revoke(
                RevocationRecord(subject, expires: now + keep), wallSeconds: now,
                countMax: RevocationRecord.countMax / 2)
        }
    }

    // MARK: - Tokens

    func authorize(
        _ request: ClientAuthorizeUserRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientAccessToken {
        let user = try await user(request.user, call)
        let name = request.client.isEmpty ? user.user.rawValue : "\(user.user).\(request.client)"
        return try await appToken(
            access: try AccessID(checking: name, "the client"), user.user, devices: nil,
            seconds: request.lifetimeSeconds, isForOneUse: false)
    }

    /// Temporary access to devices that belong to the user (IV-A3).
    func grant(_ request: ClientGrantAccessRequest, _ call: ClientCall) async throws(ApusError) -> ClientAccessToken {
        let user = try await user(request.user, call)
        guard (1...16).contains(request.devices.count) else {
            throw ApusError(.badParameter, "1 to 16 devices are expected")
        }
        var devices: [DeviceID] = []
        for text in request.devices {
            let device = try DeviceID(checking: text, "a device's id")
            // A device that was shared with the user is not the user's to pass on.
            guard try await records.record(of: device)?.account == user.user else {
                throw ApusError(.illegalRelation, "a device does not belong to the user")
            }
            devices.append(device)
        }
        return try await appToken(
            access: AccessID(unchecked: "grant-\(UUID().uuidString)"), user.user, devices: devices,
            seconds: request.lifetimeSeconds, isForOneUse: request.once)
    }

    func authorize(
        _ request: ClientAuthorizeDeviceRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientAccessToken {
        let device = try DeviceID(checking: request.device, "the device's id")
        guard let record = try await records.record(of: device), call.session.mayKnow(record) else {
            throw ApusError(.targetUnknown, "no such device")
        }
        guard let account = record.account else {
            throw ApusError(.illegalRelation, "the device is bound to no account")
        }
        let seconds = request.lifetimeSeconds == 0 ? 365 * Self.day : request.lifetimeSeconds
        // The device refuses tokens that were issued before it was bound.
        let now = max(wallSeconds(), record.tokensAfter)
        return try token(
            TokenClaims(
                access: AccessID(unchecked: device.rawValue), account: account, role: .device, device: device,
                issuedAt: now, lifetime: .seconds(seconds), cluster: cluster, id: UUID().uuidString))
    }

    /// Binds a device to an account, and lets an app of the account use it (IV-B8).
    func bind(_ request: ClientBindDeviceRequest, _ call: ClientCall) async throws(ApusError)
        -> ClientBindDeviceResponse
    {
        let device = try DeviceID(checking: request.device, "the device's id")
        let account = try AccountID(checking: request.account, "the account")
        try await sessions.relate(device, .bind(account), for: call.session)
        guard signing.current != nil else { return ClientBindDeviceResponse() }
        let token = try await appToken(
            access: AccessID(unchecked: "bind-\(UUID().uuidString)"), account, devices: [device], seconds: 0,
            isForOneUse: false)
        return .with { ($0.token, $0.access, $0.expires) = (token.token, token.access, token.expires) }
    }

    private func appToken(
        access: AccessID, _ account: AccountID, devices: [DeviceID]?, seconds: Int64, isForOneUse: Bool
    ) async throws(ApusError) -> ClientAccessToken {
        let lifetime = min(
            seconds == 0 ? .seconds(3600) : .seconds(seconds), configuration.tokenLifetimeMax)
        return try token(
            TokenClaims(
                access: access, account: account, role: .app, devices: devices, issuedAt: wallSeconds(),
                lifetime: lifetime, cluster: cluster, id: UUID().uuidString, isForOneUse: isForOneUse))
    }

    private func token(_ claims: TokenClaims) throws(ApusError) -> ClientAccessToken {
        let token = try sign(claims)
        return .with {
            ($0.token, $0.access, $0.expires, $0.id) = (token, claims.sub, claims.exp, claims.jti ?? "")
        }
    }

    private func sign(_ claims: TokenClaims) throws(ApusError) -> String {
        guard let signer = signing.current else { throw ApusError.noSigner }
        return try signer.sign(claims)
    }
}

extension SessionRecords {
    /// The account that a request names: an app's own, any for an operator, and one of its users for a customer.
    /// - Throws: 12004 for another account, 8002 for a user that the customer does not have, 21031 for a name that is
    ///   none.
    func account(named name: String, _ call: ClientCall) async throws(ApusError) -> AccountID {
        guard call.session.role == .customer else { return try call.account(named: name) }
        let account = try AccountID(checking: name, "the account")
        guard try await user(account)?.customer.rawValue == call.session.account.rawValue else {
            throw ApusError(.targetUnknown, "no such user")
        }
        return account
    }
}

extension ApusError {
    /// 21025: this node cannot issue tokens.
    static var noSigner: ApusError {
        ApusError(.unavailable, "this node has no key to sign tokens with (keys.token_private)")
    }
}

extension ClientCustomer {
    fileprivate init(_ record: CustomerRecord, now: Int64) {
        self.init()
        (customer, users) = (record.customer.rawValue, UInt32(clamping: record.userCount))
        keys = record.keys.filter { $0.expires > now }.map { key in
            .with { ($0.id, $0.issued, $0.expires) = (key.id, key.issued, key.expires) }
        }
    }
}

extension ClientUser {
    fileprivate init(_ record: UserRecord) {
        self.init()
        (user, customer) = (record.user.rawValue, record.customer.rawValue)
        registered = record.registeredAtUnixMilliseconds / 1000
    }
}
