/// A message's change to its entity's reminders. It is part of the same change of the state (D15).
package enum ReminderChange: Sendable, Equatable {
    /// Replaces a reminder of the same name.
    case set(Reminder)
    case cancel(EntityAddress, name: String)
    /// It was delivered, and carried out.
    case delivered(Reminder)
}

extension [Reminder] {
    /// Applies the change. Has no effect on a reminder that does not exist.
    mutating func apply(_ change: ReminderChange) {
        switch change {
        case .set(let reminder):
            removeAll { $0.name == reminder.name }
            append(reminder)
        case .cancel(_, let name): removeAll { $0.name == name }
        // A reminder that was set again in the meantime is a different one.
        case .delivered(let reminder): removeAll { $0.id == reminder.id }
        }
    }
}
