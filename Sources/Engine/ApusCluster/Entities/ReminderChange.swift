/// What a message does to its entity's reminders; it is part of the same change (D15).
package enum ReminderChange: Sendable, Equatable {
    /// Replaces a reminder of the same name.
    case set(Reminder)
    case cancel(EntityAddress, name: String)
    /// It was delivered, and carried out.
    case delivered(Reminder)
}

extension [Reminder] {
    /// Makes the change; what it names and is not there is passed over.
    mutating func apply(_ change: ReminderChange) {
        switch change {
        case .set(let reminder):
            removeAll { $0.name == reminder.name }
            append(reminder)
        case .cancel(_, let name): removeAll { $0.name == name }
        // One that was set anew meanwhile is another one.
        case .delivered(let reminder): removeAll { $0.id == reminder.id }
        }
    }
}
