extension VoiceTemplates {
    /// The English templates.
    package static let english = #"""
        language: en

        skip_words:
          - please
          - hey
          - just
          - could you
          - can you
          - would you
          - will you
          - for me
          - thanks
          - thank you
          - um
          - uh

        lists:
          percent:
            range: {type: percentage, from: 0, to: 100}
          degrees:
            range: {type: temperature, from: 5, to: 35, fractions: halves}
          hours:
            range: {from: 1, to: 24}
          minutes:
            range: {from: 1, to: 180}
          seconds:
            range: {from: 1, to: 120}
          hour:
            range: {from: 0, to: 23}
          minute:
            range: {from: 0, to: 59}
          group:
            values:
              - {in: (lights|lamps|lighting), out: light}
              - {in: (sockets|plugs|outlets), out: socket}
              - {in: fans, out: fan}
              - {in: (heaters|heating|radiators|thermostats), out: climate}
              - {in: (speakers|music), out: speaker}
              - {in: (screens|displays), out: display}
          shades:
            values:
              - {in: (blinds|shades|shutters|curtains), out: cover}
          period:
            values:
              - {in: (am|a m|in the morning), out: am}
              - {in: (pm|p m), out: pm}
              - {in: in the afternoon, out: pm}
              - {in: in the evening, out: pm}
              - {in: (at night|tonight), out: night}
          day:
            values:
              - today
              - tomorrow
              - {in: '[on] monday[s]', out: monday}
              - {in: '[on] tuesday[s]', out: tuesday}
              - {in: '[on] wednesday[s]', out: wednesday}
              - {in: '[on] thursday[s]', out: thursday}
              - {in: '[on] friday[s]', out: friday}
              - {in: '[on] saturday[s]', out: saturday}
              - {in: '[on] sunday[s]', out: sunday}
          level:
            values:
              - {in: (brightness|light level), out: brightness}
              - {in: (volume|sound), out: volume}
              - {in: (position|level), out: position}
          reading:
            values:
              - temperature
              - humidity
              - {in: '(battery [level]|charge)', out: battery}
              - brightness
              - volume

        expansion_rules:
          the: (the|my|our|that|this)
          in_area: (in|inside|at|on) [<the>] {area}
          everywhere: (everywhere|in (the (whole|entire) house|every room|all rooms|all the rooms))
          all: (all|all of|every one of)
          turn: (turn|switch|put)
          turn_on: (<turn> on|turn up the power of|power on|activate|enable|start)
          turn_off: (<turn> off|power off|deactivate|disable|shut off|kill)
          what_is: (what is|what's|whats|tell me|give me|how is)
          is: (is|are)
          set: (set|change|adjust|put|turn)
          open: (open|open up|raise|roll up|pull up)
          close: (close|shut|lower|roll down|pull down)
          percent: (percent|per cent)
          to: (to|at)
          bit: a (bit|little)
          timer: (timer|countdown|countdown timer)
          alarm_clock: (alarm clock|alarm|wake up call|wake up alarm)
          system: (alarm|alarm system|security|security system|house alarm|burglar alarm)
          span: >-
            ({hours} hour[s] [[and] {minutes} minute[s]]
            |{hours} hour[s] [and] {minutes} minute[s] [and] {seconds} second[s]
            |{minutes} minute[s] [[and] {seconds} second[s]]
            |{seconds} second[s])
          call: (call|phone|ring|dial|video call|speak to|speak with|talk to|talk with|get me|connect me (to|with))

        intents:
          DeviceOn:
            data:
              - sentences:
                  - <turn_on> [<the>] {name} [<in_area>]
                  - <turn> [<the>] {name} [<in_area>] on
                  - (i want|i need|i would like|i'd like) [<the>] {name} on
                requires_context: &switched
                  kind: [light, socket, fan, climate, speaker, display, camera, other]
              - sentences:
                  - <turn_on> [<all>] [<the>] {group:kind} <in_area>
                  - <turn_on> [<all>] [<the>] {area} {group:kind}
                  - <turn> [<all>] [<the>] {group:kind} <in_area> on
                  - <turn> [<all>] [<the>] {area} {group:kind} on
                  - <turn> [<all>] [<the>] {group:kind} on <in_area>
              - sentences:
                  - <turn_on> [<all>] [<the>] {group:kind} <everywhere>
                  - <turn> [<all>] [<the>] {group:kind} on <everywhere>
                slots: {scope: everywhere}
              - sentences:
                  - <turn_on> [<the>] {group:kind} [(here|in here|in this room)]
                  - <turn> [<the>] {group:kind} on [(here|in here|in this room)]
                  - (make it|let there be) light
                  - '{group:kind} on'
                requires_context:
                  area: {slot: true}
                slots: {kind: light}
          DeviceOff:
            data:
              - sentences:
                  - <turn_off> [<the>] {name} [<in_area>]
                  - <turn> [<the>] {name} [<in_area>] off
                  - i (do not|don't|dont) (want|need) [<the>] {name} on
                requires_context: *switched
              - sentences:
                  - <turn_off> [<all>] [<the>] {group:kind} <in_area>
                  - <turn_off> [<all>] [<the>] {area} {group:kind}
                  - <turn> [<all>] [<the>] {group:kind} <in_area> off
                  - <turn> [<all>] [<the>] {area} {group:kind} off
                  - <turn> [<all>] [<the>] {group:kind} off <in_area>
              - sentences:
                  - <turn_off> [<all>] [<the>] {group:kind} <everywhere>
                  - <turn> [<all>] [<the>] {group:kind} off <everywhere>
                slots: {scope: everywhere}
              - sentences:
                  - <turn_off> [<the>] {group:kind} [(here|in here|in this room)]
                  - <turn> [<the>] {group:kind} off [(here|in here|in this room)]
                  - '{group:kind} off'
                requires_context:
                  area: {slot: true}
                slots: {kind: light}
          DeviceSet:
            data:
              - sentences:
                  - (dim|brighten|<set>) [<the>] {name} [<in_area>] <to> {percent:value} [<percent>] [brightness]
                  - <set> [the] brightness of [<the>] {name} [<in_area>] <to> {percent:value} [<percent>]
                  - <set> [<the>] {name} brightness <to> {percent:value} [<percent>]
                requires_context: {kind: light}
                slots: {what: brightness}
              - sentences:
                  - (dim|brighten|<set>) [<all>] [<the>] lights <in_area> <to> {percent:value} [<percent>]
                  - (dim|brighten|<set>) [<all>] [<the>] {area} lights <to> {percent:value} [<percent>]
                  - <set> [the] brightness <in_area> <to> {percent:value} [<percent>]
                slots: {what: brightness, kind: light}
              - sentences:
                  - <set> [<the>] {name} [<in_area>] <to> half [brightness]
                  - dim [<the>] {name} [<in_area>] to half
                requires_context: {kind: light}
                slots: {what: brightness, value: '50'}
              - sentences:
                  - <set> [<the>] {name} [<in_area>] <to> (full|maximum|full brightness|maximum brightness)
                requires_context: {kind: light}
                slots: {what: brightness, value: '100'}
              - sentences:
                  - <set> [<the>] {name} [<in_area>] <to> {degrees:value} [degree[s]] [(c|celsius)]
                  - <set> [the] temperature of [<the>] {name} <to> {degrees:value} [degree[s]] [(c|celsius)]
                  - (heat|cool) [<the>] {name} to {degrees:value} [degree[s]] [(c|celsius)]
                requires_context: {kind: climate}
                slots: {what: temperature}
              - sentences:
                  - <set> [the] temperature <in_area> <to> {degrees:value} [degree[s]] [(c|celsius)]
                  - <set> [the] {area} temperature <to> {degrees:value} [degree[s]] [(c|celsius)]
                  - (heat|cool) [<the>] {area} to {degrees:value} [degree[s]] [(c|celsius)]
                  - make it {degrees:value} degrees [(c|celsius)] <in_area>
                slots: {what: temperature}
              - sentences:
                  - <set> [the] temperature <to> {degrees:value} [degree[s]] [(c|celsius)]
                  - make it {degrees:value} degrees [(c|celsius)] [in here]
                requires_context:
                  area: {slot: true}
                slots: {what: temperature}
              - sentences:
                  - <set> [the] volume (of|on|for) [<the>] {name} [<in_area>] <to> {percent:value} [<percent>]
                  - <set> [<the>] {name} volume <to> {percent:value} [<percent>]
                requires_context:
                  kind: [speaker, display]
                slots: {what: volume}
              - sentences:
                  - <set> [<the>] {name} [<in_area>] <to> {percent:value} [<percent>]
                  - (open|close|raise|lower) [<the>] {name} [<in_area>] to {percent:value} [<percent>]
                  - <set> [the] position of [<the>] {name} <to> {percent:value} [<percent>]
                requires_context: {kind: cover}
                slots: {what: position}
              - sentences:
                  - <set> [<the>] {name} [speed] <to> {percent:value} [<percent>]
                requires_context: {kind: fan}
                slots: {what: speed}
          DeviceRaise:
            data:
              - sentences:
                  - (make [<the>] {name} [<in_area>] [<bit>] brighter|brighten [<the>] {name} [<in_area>] [<bit>])
                requires_context: {kind: light}
                slots: {what: brightness}
              - sentences:
                  - (make [<the>] lights <in_area> [<bit>] brighter|brighten [<the>] lights <in_area> [<bit>])
                  - make it [<bit>] brighter <in_area>
                slots: {what: brightness, kind: light}
              - sentences:
                  - ([make it] [<bit>] brighter [in here]|(it is|it's) too dark [in here]|brighten [<the>] lights)
                requires_context: {area: {slot: true}}
                slots: {what: brightness, kind: light}
              - sentences:
                  - (make [<the>] {name} [<in_area>] [<bit>] warmer|turn up [<the>] {name} [<in_area>] [<bit>])
                requires_context: {kind: climate}
                slots: {what: temperature}
              - sentences:
                  - (make [<the>] {area} [<bit>] warmer|make it [<bit>] warmer <in_area>)
                  - (raise|increase|turn up) [the] temperature <in_area>
                slots: {what: temperature}
              - sentences:
                  - ([make it] [<bit>] warmer [in here]|(it is|it's) too cold [in here])
                  - (raise|increase|turn up) [the] temperature
                requires_context: {area: {slot: true}}
                slots: {what: temperature}
              - sentences:
                  - make [<the>] {name} [<bit>] louder
                  - (raise|increase|turn up) [the] volume (of|on) [<the>] {name} [<bit>]
                requires_context: {kind: [speaker, display]}
                slots: {what: volume}
          DeviceLower:
            data:
              - sentences:
                  - (make [<the>] {name} [<in_area>] [<bit>] (dimmer|darker)|dim [<the>] {name} [<in_area>] [<bit>])
                requires_context: {kind: light}
                slots: {what: brightness}
              - sentences:
                  - (make [<the>] lights <in_area> [<bit>] (dimmer|darker)|dim [<the>] lights <in_area> [<bit>])
                  - make it [<bit>] (dimmer|darker) <in_area>
                slots: {what: brightness, kind: light}
              - sentences:
                  - ([make it] [<bit>] (dimmer|darker) [in here]|(it is|it's) too bright [in here]|dim [<the>] lights)
                requires_context: {area: {slot: true}}
                slots: {what: brightness, kind: light}
              - sentences:
                  - make [<the>] {name} [<in_area>] [<bit>] (colder|cooler)
                  - turn down [<the>] {name} [<in_area>] [<bit>]
                requires_context: {kind: climate}
                slots: {what: temperature}
              - sentences:
                  - (make [<the>] {area} [<bit>] (colder|cooler)|make it [<bit>] (colder|cooler) <in_area>)
                  - (lower|decrease|reduce|turn down) [the] temperature <in_area>
                slots: {what: temperature}
              - sentences:
                  - ([make it] [<bit>] (colder|cooler) [in here]|(it is|it's) too (warm|hot) [in here])
                  - (lower|decrease|reduce|turn down) [the] temperature
                requires_context: {area: {slot: true}}
                slots: {what: temperature}
              - sentences:
                  - make [<the>] {name} [<bit>] (quieter|softer)
                  - (lower|decrease|reduce|turn down) [the] volume (of|on) [<the>] {name} [<bit>]
                requires_context: {kind: [speaker, display]}
                slots: {what: volume}
          DeviceGet:
            data:
              - sentences:
                  - <is> [<the>] {name} [<in_area>] [still] (open|opened)
                  - did i leave [<the>] {name} open
                requires_context: &opened
                  kind: [cover, door, window, lock]
                slots: {state: open}
              - sentences:
                  - <is> [<the>] {name} [<in_area>] [still] (closed|shut)
                requires_context: *opened
                slots: {state: closed}
              - sentences:
                  - <is> [<the>] {name} [<in_area>] [still] locked
                  - did i lock [<the>] {name}
                requires_context: {kind: lock}
                slots: {state: locked}
              - sentences:
                  - <is> [<the>] {name} [<in_area>] [still] unlocked
                requires_context: {kind: lock}
                slots: {state: unlocked}
              - sentences:
                  - <is> [<the>] {name} [<in_area>] [still] (on|running|turned on|switched on)
                  - did i leave [<the>] {name} on
                requires_context: *switched
                slots: {state: 'on'}
              - sentences:
                  - <is> [<the>] {name} [<in_area>] [still] (off|turned off|switched off)
                requires_context: *switched
                slots: {state: 'off'}
              - sentences:
                  - is [the] <system> [still] (on|armed|set)
                slots: {state: armed}
              - sentences:
                  - <what_is> [the] {reading:what} (of|on|at) [<the>] {name} [<in_area>]
                  - <what_is> [<the>] {name} {reading:what}
              - sentences:
                  - <what_is> [the] temperature <in_area>
                  - <what_is> [the] {area} temperature
                  - how (warm|hot|cold) is it <in_area>
                  - how (warm|hot|cold) is [<the>] {area}
                slots: {what: temperature}
              - sentences:
                  - <what_is> [the] humidity <in_area>
                  - <what_is> [the] {area} humidity
                slots: {what: humidity}
              - sentences:
                  - <what_is> [the] temperature [(here|in here|inside)]
                  - how (warm|hot|cold) is it [(here|in here|inside)]
                requires_context:
                  area: {slot: true}
                slots: {what: temperature}
              - sentences:
                  - <what_is> [the] (status|state) of [<the>] {name}
                  - (how is|how's|hows|what about) [<the>] {name} [doing]
                slots: {what: state}
          DeviceOpen:
            data:
              - sentences:
                  - <open> [<the>] {name} [<in_area>]
                  - (roll|pull) [<the>] {name} up
                  - let <the> {name} (up|open)
                requires_context: &moved
                  kind: [cover, door, window]
              - sentences:
                  - <open> [<all>] [<the>] {shades:kind} <in_area>
                  - <open> [<all>] [<the>] {area} {shades:kind}
              - sentences:
                  - <open> [<all>] [<the>] {shades:kind} <everywhere>
                slots: {scope: everywhere}
          DeviceClose:
            data:
              - sentences:
                  - <close> [<the>] {name} [<in_area>]
                  - (roll|pull) [<the>] {name} down
                requires_context: *moved
              - sentences:
                  - <close> [<all>] [<the>] {shades:kind} <in_area>
                  - <close> [<all>] [<the>] {area} {shades:kind}
              - sentences:
                  - <close> [<all>] [<the>] {shades:kind} <everywhere>
                slots: {scope: everywhere}
          DeviceLock:
            data:
              - sentences:
                  - (lock|lock up|bolt|secure) [<the>] {name} [<in_area>]
                  - make sure [<the>] {name} is locked
                requires_context: {kind: lock}
          DeviceUnlock:
            data:
              - sentences:
                  - (unlock|unbolt) [<the>] {name} [<in_area>]
                  - open [<the>] lock of [<the>] {name}
                  - let (them|him|her|me) in (at|through) [<the>] {name}
                requires_context: {kind: lock}
          AlarmArm:
            data:
              - sentences:
                  - (arm|activate|set|turn on|switch on|enable) [<the>] <system>
                  - (turn|switch) [<the>] <system> on
              - sentences:
                  - (arm|set) [<the>] <system> [to|for|in] (away|away mode|leaving)
                  - (i am|i'm) leaving [<the>] house
                slots: {mode: away}
              - sentences:
                  - (arm|set) [<the>] <system> [to|for|in] (night|night mode|the night)
                slots: {mode: night}
              - sentences:
                  - (arm|set) [<the>] <system> [to|for|in] (home|home mode|stay|stay mode)
                slots: {mode: home}
          AlarmDisarm:
            data:
              - sentences:
                  - (disarm|deactivate|turn off|switch off|disable) [<the>] <system>
                  - (turn|switch) [<the>] <system> off
          CallStart:
            data:
              - sentences:
                  - <call> [<the>] {contact}
                  - (make|start|place) a [video] call to [<the>] {contact}
                  - give [<the>] {contact} a (call|ring)
                  - (i want|i would like|i'd like) to (call|speak to|talk to) [<the>] {contact}
          CallAnswer:
            data:
              - sentences:
                  - (answer|accept|take|pick up) [(it|the call|the phone|the door|the doorbell)]
                  - pick (it|the phone) up
                  - (i will|i'll) (get|take|answer) it
          CallDecline:
            data:
              - sentences:
                  - (decline|reject|ignore|dismiss|refuse) [(it|the call|this call)]
                  - (do not|don't|dont) (answer|accept|take) [(it|the call|this call)]
                  - send (it|them|him|her) to voicemail
          CallEnd:
            data:
              - sentences:
                  - hang up [(the call|the phone|now)]
                  - (end|finish|disconnect|drop|close) [(the|this)] call
                  - (goodbye|bye|bye bye)
          CameraShow:
            data:
              - sentences:
                  - <show> [<the>] {name} [(camera|video|feed|picture)] [(on|at) [<the>] {screen}]
                  - (who is|who's|whos|what is|what's|whats) (at|on|in front of) [<the>] {name}
                  - (let me see|i want to see|look at|bring up) [<the>] {name} [(camera|video|feed)]
                requires_context: {kind: camera}
                expansion_rules:
                  show: (show|show me|show us|display|stream|put|view)
          TimerSet:
            data:
              - sentences:
                  - (set|start|create|make|begin) [(a|an|another|the)] <timer> (for|of|to) <span>
                  - (set|start|create|make|begin) [(a|an|another)] <span> <timer>
                  - (set|start) [a] <timer> <span>
                  - <timer> [(for|of)] <span>
                  - (remind|alert|wake) me in <span>
                  - count down [(for|from)] <span>
              - sentences:
                  - (set|start|create|make) a <timer> for half an hour
                  - (set|start|create|make) a half hour <timer>
                  - (remind|wake) me in half an hour
                slots: {minutes: '30'}
              - sentences:
                  - (set|start|create|make) a <timer> for (an|one) hour
                  - (remind|wake) me in an hour
                slots: {hours: '1'}
              - sentences:
                  - (set|start|create|make) a <timer> for {hours} and a half hours
                  - (set|start|create|make) a <timer> for {hours} hour[s] and a half
                slots: {minutes: '30'}
              - sentences:
                  - (set|start|create|make) a <timer> for a minute
                slots: {minutes: '1'}
          TimerCancel:
            data:
              - sentences:
                  - (cancel|stop|delete|remove|clear|end|turn off) [<the>] <timer>
                  - (cancel|stop|delete|remove) [<the>] {minutes} minute <timer>
              - sentences:
                  - (cancel|stop|delete|remove|clear) (all|all the|all my|every) (timers|timer|countdowns)
                slots: {count: all}
          TimerQuery:
            data:
              - sentences:
                  - how (much time|long) is left [on [<the>] <timer>]
                  - how (much time|long|many minutes) [(do i have|have i got|are|is)] left [on [<the>] <timer>]
                  - how long (until|till|before) [<the>] <timer> (ends|goes off|is up|is done|rings)
                  - (what is|what's|whats) left on [<the>] <timer>
                  - (when|how soon) (does|will) [<the>] <timer> (end|go off|ring)
                  - (check|show) [<the>] <timer>[s]
          TimerPause:
            data:
              - sentences:
                  - (pause|hold|freeze|suspend) [<the>] <timer>
          TimerResume:
            data:
              - sentences:
                  - (resume|continue|unpause|restart) [<the>] <timer>
          AlarmSet:
            data:
              - sentences:
                  - <wake> {hour} [o'clock] [{period}] [{day}]
                  - <wake> {hour} {minute} [{period}] [{day}]
                  - <wake> {day} at {hour} [{minute}] [o'clock] [{period}]
                  - <alarm_clock> (for|at) {hour} [{minute}] [o'clock] [{period}] [{day}]
                expansion_rules: &wake
                  wake: >-
                    (wake me [up] [at]|wake us [up] [at]
                    |(set|create|make|add) [(an|a|the|my)] <alarm_clock> (for|at|to))
              - sentences:
                  - <wake> half past {hour} [{period}] [{day}]
                slots: {minute: '30'}
                expansion_rules: *wake
              - sentences:
                  - <wake> [a] quarter past {hour} [{period}] [{day}]
                slots: {minute: '15'}
                expansion_rules: *wake
              - sentences:
                  - <wake> [a] quarter to {hour} [{period}] [{day}]
                slots: {minute: '15', direction: to}
                expansion_rules: *wake
              - sentences:
                  - <wake> {minute} [minutes] past {hour} [{period}] [{day}]
                expansion_rules: *wake
              - sentences:
                  - <wake> {minute} [minutes] to {hour} [{period}] [{day}]
                slots: {direction: to}
                expansion_rules: *wake
          AlarmCancel:
            data:
              - sentences:
                  - (cancel|delete|remove|clear) [<the>] <alarm_clock> [{day}]
                  - (cancel|delete|remove) [<the>] {hour} [o'clock] [{period}] <alarm_clock>
                  - (do not|don't|dont) wake me [up] [{day}]
                  - turn off my (alarm clock|wake up alarm|wake up call)
              - sentences:
                  - (cancel|delete|remove|clear) (all|all the|all my|every) (alarms|alarm clocks)
                slots: {count: all}
          TimeGet:
            data:
              - sentences:
                  - (what time is it|what's the time|whats the time|what is the time) [now]
                  - (tell|give) me the time
                  - do you (have|know) the time
                  - (time|the time)
          DateGet:
            data:
              - sentences:
                  - (what's|whats|what is) (the date|today's date|todays date) [today]
                  - what (day|date) is (it|today) [today]
                  - which day is (it|today)
                  - what day of the (week|month) is (it|today)
                  - tell me (the date|what day it is)
          VolumeSet:
            data:
              - sentences:
                  - <set> [the|your] volume <to> {percent:value} [<percent>]
                  - volume [<to>] {percent:value} [<percent>]
                  - turn (it|the volume) (down|up) to {percent:value} [<percent>]
              - sentences:
                  - <set> [the|your] volume <to> (maximum|max|full)
                  - (maximum|max|full) volume
                slots: {value: '100'}
              - sentences:
                  - mute [(yourself|the volume|the sound)]
                slots: {value: '0'}
          VolumeUp:
            data:
              - sentences:
                  - (louder|volume up|speak up|speak louder)
                  - turn (up the volume|the volume up|it up|up) [a (bit|little)]
                  - (raise|increase) the volume
                  - (make it|a (bit|little)|be) louder
                  - i (can not|cannot|can't|cant) hear you
          VolumeDown:
            data:
              - sentences:
                  - (quieter|softer|volume down|speak quietly)
                  - turn (down the volume|the volume down|it down|down) [a (bit|little)]
                  - (lower|decrease|reduce) the volume
                  - (make it|a (bit|little)|be) (quieter|softer)
                  - (not so loud|too loud|that is too loud|that's too loud)
          Stop:
            data:
              - sentences:
                  - (stop|stop it|stop that|stop now|enough|that's enough|that is enough|quiet|be quiet|shut up|silence)
                  - stop (talking|playing|the music|the alarm|ringing|the ringing)
          Repeat:
            data:
              - sentences:
                  - (repeat|repeat that|say that again|say it again|once more|one more time|again)
                  - (what did you say|what was that|pardon|pardon me|come again|sorry what)
          Help:
            data:
              - sentences:
                  - (help|help me|i need help)
                  - what can (i say|you do|i ask|i ask you)
                  - (what are|list) (the|your) commands
                  - how does (this|it) work
          Yes:
            data:
              - sentences:
                  - (yes|yeah|yep|yup|sure|sure thing|of course|ok|okay|correct|right|that's right|that is right)
                  - (do it|go ahead|confirm|affirmative|absolutely|definitely)
                  - yes (do it|go ahead|of course|that's right|that is right)
          No:
            data:
              - sentences:
                  - (no|nope|nah|no way|negative|wrong|that's wrong|that is wrong|not that one|neither)
                  - (do not|don't|dont) [do (it|that)]
                  - no (don't|dont|do not|that's wrong|not that one)
          Cancel:
            data:
              - sentences:
                  - (never mind|nevermind|cancel|cancel that|cancel it|forget it|forget that|forget about it)
                  - (nothing|no nothing|it's nothing|leave it|abort)
        """#
}
