import ApusCore
import ApusWire

// The parties in messages of other nodes. Their names become keys of entities.

extension CallPlace {
    package var isWithinBounds: Bool {
        caller.isValid && callees.allSatisfy(\.party.isValid) && claims.allSatisfy(\.party.isValid)
    }
}

extension CallReport {
    package var isWithinBounds: Bool { party.isValid }
}

extension CallNote {
    package var isWithinBounds: Bool {
        switch kind {
        case .claimed, .refused, .released: party.isValid
        case .unspecified, .recordWritten, .messageStored, .messageFull, .UNRECOGNIZED: true
        }
    }
}

extension CallPeek {
    package var isWithinBounds: Bool { party.isValid }
}

extension CallListen {
    package var isWithinBounds: Bool {
        AccessID(rawValue: listener.endpoint) != nil && NodeName(rawValue: listener.node) != nil
    }
}

extension CallDeliver {
    package var isWithinBounds: Bool { party.isValid }
}
