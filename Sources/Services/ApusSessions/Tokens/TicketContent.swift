import ApusCore

/// The plaintext of a ticket or a grant.
/// A version byte, then fields: a tag, a length, and that many bytes. Numbers are big-endian. A reader skips unknown
/// tags, so that nodes of two versions accept each other's tickets. Tickets from before the version byte began with a
/// brace and are refused.
///
/// Pure.
struct TicketContent: Equatable {
    enum Kind: UInt8 { case session = 1, grant = 2, signIn = 3, address = 4 }

    /// Tags are never reused.
    private enum Tag: UInt8 {
        case kind = 1
        case role = 2
        case expires = 3
        case since = 4
        case session = 5
        case access = 6
        case account = 7
        case device = 8
        /// Without content: only the devices of the fields that follow are accessible.
        case restricted = 9
        case allowedDevice = 10
        case instance = 11
        case orderEpoch = 12
        case orderSequence = 13
        /// The token's tag, its time of issue and its expiry.
        case token = 14
        /// The tag of a browser's sign-in, and the tab.
        case signIn = 15
        /// What an address names.
        case content = 16
    }

    private static let version: UInt8 = 1

    var kind: Kind
    var session: Session
    /// The expiry, in Unix seconds. The ticket is invalid afterwards.
    var expires: Int64
    /// Of an address: what it names, at most 255 bytes.
    var content: [UInt8]

    init(kind: Kind, session: Session, expires: Int64, content: [UInt8] = []) {
        self.kind = kind
        self.session = session
        self.expires = expires
        self.content = content
    }

    // MARK: - Writing

    func encoded() -> [UInt8] {
        var bytes: [UInt8] = [Self.version]
        bytes.reserveCapacity(192)
        Self.write([kind.rawValue], .kind, to: &bytes)
        Self.write([session.role.code], .role, to: &bytes)
        Self.write(expires, .expires, to: &bytes)
        Self.write(session.sinceMilliseconds, .since, to: &bytes)
        let token = [Int64(bitPattern: session.token.tag), session.token.issuedAt, session.token.expires]
        Self.write(token.flatMap(Self.bytes), .token, to: &bytes)
        // Absent fields are read as zero.
        if session.instance != 0 { Self.write(Int64(bitPattern: session.instance), .instance, to: &bytes) }
        if session.order != .none {
            Self.write(Int64(session.order.epoch), .orderEpoch, to: &bytes)
            Self.write(Int64(bitPattern: session.order.sequence), .orderSequence, to: &bytes)
        }
        if session.signIn != 0 {
            let numbers = [Int64(bitPattern: session.signIn), Int64(bitPattern: session.tab)]
            Self.write(numbers.flatMap(Self.bytes), .signIn, to: &bytes)
        }
        if !content.isEmpty { Self.write(content, .content, to: &bytes) }
        Self.write(session.id.utf8, .session, to: &bytes)
        Self.write(session.access.rawValue.utf8, .access, to: &bytes)
        Self.write(session.account.rawValue.utf8, .account, to: &bytes)
        if let device = session.device { Self.write(device.rawValue.utf8, .device, to: &bytes) }
        if let allowed = session.allowedDevices {
            Self.write([], .restricted, to: &bytes)
            for device in allowed { Self.write(device.rawValue.utf8, .allowedDevice, to: &bytes) }
        }
        return bytes
    }

    /// Content that exceeds the length field is omitted: identifiers and session ids are shorter.
    private static func write(_ content: some Collection<UInt8>, _ tag: Tag, to bytes: inout [UInt8]) {
        guard let count = UInt8(exactly: content.count) else { return }
        bytes.append(tag.rawValue)
        bytes.append(count)
        bytes.append(contentsOf: content)
    }

    private static func write(_ number: Int64, _ tag: Tag, to bytes: inout [UInt8]) {
        write(Self.bytes(of: number), tag, to: &bytes)
    }

    private static func bytes(of number: Int64) -> [UInt8] {
        (0..<8).map { UInt8(truncatingIfNeeded: number >> (56 - 8 * $0)) }
    }

    // MARK: - Reading

    /// Nil if the bytes are truncated or of another version, repeat a field, or lack a required field.
    init?(decoding bytes: [UInt8]) {
        guard bytes.first == Self.version else { return nil }
        var rest = bytes.dropFirst()
        var fields = Fields()
        while let tag = rest.popFirst() {
            guard let count = rest.popFirst(), rest.count >= Int(count) else { return nil }
            let content = rest.prefix(Int(count))
            rest = rest.dropFirst(Int(count))
            guard let tag = Tag(rawValue: tag) else { continue }
            guard fields.take(tag, content) else { return nil }
        }
        guard let kind = fields.kind, let role = fields.role, let expires = fields.expires,
            let access = fields.access, let account = fields.account
        else { return nil }
        var session = Session(
            id: fields.session ?? "", role: role, access: access, account: account, device: fields.device,
            allowedDevices: fields.allowed, sinceMilliseconds: fields.since ?? 0,
            instance: UInt64(bitPattern: fields.instance ?? 0), order: fields.order,
            // An earlier version did not write it. What such a ticket renews expires with the ticket.
            token: fields.token
                ?? TokenMark(tag: 0, issuedAt: (fields.since ?? 0) / 1000, expires: expires))
        (session.signIn, session.tab) = fields.signIn ?? (0, 0)
        self.init(kind: kind, session: session, expires: expires, content: fields.content ?? [])
    }

    private struct Fields {
        var kind: Kind?
        var role: Session.Role?
        var expires: Int64?
        var since: Int64?
        var session: String?
        var access: AccessID?
        var account: AccountID?
        var device: DeviceID?
        var allowed: [DeviceID]?
        var instance: Int64?
        var orderEpoch: Int64?
        var orderSequence: Int64?
        var token: TokenMark?
        var signIn: (tag: UInt64, tab: UInt64)?
        var content: [UInt8]?

        /// None if a part is missing, or the epoch is out of range.
        var order: SessionOrder {
            guard let epoch = orderEpoch.flatMap({ Epoch(exactly: $0) }), let sequence = orderSequence else {
                return .none
            }
            return SessionOrder(epoch: epoch, sequence: UInt64(bitPattern: sequence))
        }

        /// Returns false if the field is invalid or a duplicate.
        mutating func take(_ tag: Tag, _ content: ArraySlice<UInt8>) -> Bool {
            switch tag {
            case .kind: Self.set(&kind, Self.byte(content).flatMap { Kind(rawValue: $0) })
            case .role: Self.set(&role, Self.byte(content).flatMap { Session.Role(code: $0) })
            case .expires: Self.set(&expires, Self.number(content))
            case .since: Self.set(&since, Self.number(content))
            case .session: Self.set(&session, Self.text(content))
            case .access: Self.set(&access, Self.text(content).flatMap { AccessID(rawValue: $0) })
            case .account: Self.set(&account, Self.text(content).flatMap { AccountID(rawValue: $0) })
            case .device: Self.set(&device, Self.text(content).flatMap { DeviceID(rawValue: $0) })
            case .restricted: Self.set(&allowed, content.isEmpty ? [] : nil)
            case .instance: Self.set(&instance, Self.number(content))
            case .orderEpoch: Self.set(&orderEpoch, Self.number(content))
            case .orderSequence: Self.set(&orderSequence, Self.number(content))
            case .token: Self.set(&token, Self.mark(content))
            case .signIn: Self.set(&signIn, Self.pair(content))
            case .content: Self.set(&self.content, Array(content))
            case .allowedDevice: allow(Self.text(content).flatMap { DeviceID(rawValue: $0) })
            }
        }

        private mutating func allow(_ device: DeviceID?) -> Bool {
            guard let device, allowed != nil else { return false }
            allowed?.append(device)
            return true
        }

        private static func set<Value>(_ field: inout Value?, _ value: Value?) -> Bool {
            guard field == nil, let value else { return false }
            field = value
            return true
        }

        private static func byte(_ content: ArraySlice<UInt8>) -> UInt8? {
            content.count == 1 ? content.first : nil
        }

        private static func number(_ content: ArraySlice<UInt8>) -> Int64? {
            guard content.count == 8 else { return nil }
            return Int64(bitPattern: content.reduce(0) { $0 << 8 | UInt64($1) })
        }

        private static func mark(_ content: ArraySlice<UInt8>) -> TokenMark? {
            guard content.count == 24, let tag = number(content.prefix(8)),
                let issuedAt = number(content.dropFirst(8).prefix(8)), let expires = number(content.suffix(8))
            else { return nil }
            return TokenMark(tag: UInt64(bitPattern: tag), issuedAt: issuedAt, expires: expires)
        }

        private static func pair(_ content: ArraySlice<UInt8>) -> (tag: UInt64, tab: UInt64)? {
            guard content.count == 16, let tag = number(content.prefix(8)), let tab = number(content.suffix(8)) else {
                return nil
            }
            return (UInt64(bitPattern: tag), UInt64(bitPattern: tab))
        }

        private static func text(_ content: ArraySlice<UInt8>) -> String? { String(validating: content, as: UTF8.self) }
    }
}

extension Session.Role {
    /// The role's number in tickets.
    fileprivate var code: UInt8 {
        switch self {
        case .device: 1
        case .app: 2
        case .admin: 3
        case .customer: 4
        }
    }

    fileprivate init?(code: UInt8) {
        switch code {
        case 1: self = .device
        case 2: self = .app
        case 3: self = .admin
        case 4: self = .customer
        default: return nil
        }
    }
}
