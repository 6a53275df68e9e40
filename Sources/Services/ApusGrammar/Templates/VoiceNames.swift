/// The intents of the templates that Apus has for each language. Raw values are the names in the templates.
package enum VoiceIntent: String, Sendable, CaseIterable {
    case deviceOn = "DeviceOn"
    case deviceOff = "DeviceOff"
    /// Sets a brightness, a volume, a temperature or a position (``VoiceSlot/what``) to ``VoiceSlot/value``.
    case deviceSet = "DeviceSet"
    /// Changes ``VoiceSlot/what`` by a step: brighter, warmer, louder.
    case deviceRaise = "DeviceRaise"
    /// Dimmer, colder, quieter.
    case deviceLower = "DeviceLower"
    /// Asks for a state: ``VoiceSlot/state`` for a question about one, ``VoiceSlot/what`` for a question about a value.
    case deviceGet = "DeviceGet"
    case deviceOpen = "DeviceOpen"
    case deviceClose = "DeviceClose"
    case deviceLock = "DeviceLock"
    case deviceUnlock = "DeviceUnlock"
    case alarmArm = "AlarmArm"
    case alarmDisarm = "AlarmDisarm"
    case callStart = "CallStart"
    case callAnswer = "CallAnswer"
    case callDecline = "CallDecline"
    case callEnd = "CallEnd"
    case cameraShow = "CameraShow"
    case timerSet = "TimerSet"
    case timerCancel = "TimerCancel"
    case timerQuery = "TimerQuery"
    case timerPause = "TimerPause"
    case timerResume = "TimerResume"
    /// An alarm clock.
    case alarmSet = "AlarmSet"
    case alarmCancel = "AlarmCancel"
    case timeGet = "TimeGet"
    case dateGet = "DateGet"
    case volumeSet = "VolumeSet"
    case volumeUp = "VolumeUp"
    case volumeDown = "VolumeDown"
    case stop = "Stop"
    case repeatReply = "Repeat"
    case help = "Help"
    case yes = "Yes"
    case no = "No"
    case cancel = "Cancel"
}

/// The slots of these templates. Raw values are the names in the templates.
package enum VoiceSlot: String, Sendable, CaseIterable {
    /// The value of a device in ``VoiceList/name``.
    case name
    /// The value of an area in ``VoiceList/area``, said or from the context.
    case area
    /// The kind of all devices that are meant (``VoiceKind``), always with ``area`` or ``scope``.
    case kind
    /// `everywhere`: all areas, because the speaker said so.
    case scope
    /// `brightness`, `volume`, `temperature`, `position`, `speed`, `humidity`, `battery` or `state`.
    case what
    /// A number in the unit of ``what``: percent or degrees Celsius.
    case value
    /// `open`, `closed`, `locked`, `unlocked`, `on`, `off` or `armed`.
    case state
    /// `home`, `away` or `night`.
    case mode
    case contact
    case screen
    case hours
    case minutes
    case seconds
    /// The hour of a time of day, as it was said: 0 to 23.
    case hour
    /// The minute of a time of day: 0 to 59.
    case minute
    /// `to`: ``minute`` is before ``hour``, as in `ten to six`.
    case direction
    /// `am`, `pm`, `noon` or `night`.
    case period
    /// `today`, `tomorrow` or a day of the week in English, in lower case.
    case day
    /// `all`: all timers or alarms.
    case count
}

/// The lists that the account binds. Raw values are the names in the templates.
package enum VoiceList: String, Sendable, CaseIterable {
    /// Devices. Each value has the fact ``VoiceKind/factName``. A device of two kinds is in the list twice.
    case name
    case area
    /// What can be called: people, intercoms and rooms.
    case contact
    /// Devices that show video.
    case screen
}

/// The kinds of devices. Raw values are those in the templates.
package enum VoiceKind: String, Sendable, CaseIterable {
    case light, socket, fan, climate, speaker, display, camera
    /// Blinds, curtains, garage gates: what opens and closes by a motor.
    case cover
    case door, window, lock, alarm, sensor, other

    /// The name of the fact in ``GrammarValue/context``.
    package static let factName = "kind"

    /// The fact of a value of this kind.
    package var fact: GrammarFact { GrammarFact(Self.factName, rawValue) }
}

/// The templates that Apus has.
package enum VoiceTemplates {
    /// The text of a language; nil if Apus has no templates for it. All regions of a language have the same text.
    package static func yaml(of language: GrammarLanguage) -> String? {
        switch language.numbers {
        case .english: english
        case .chinese: chinese
        case .digits: nil
        }
    }
}
