extension VoiceTemplates {
    /// The templates for Simplified Chinese.
    package static let chinese = #"""
        language: zh-CN

        skip_words: [请, 麻烦, 麻烦你, 帮我, 给我, 帮忙, 吧, 啊, 呀, 谢谢, 谢谢你]

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
              - {in: (灯|灯光|电灯|照明), out: light}
              - {in: (插座|开关), out: socket}
              - {in: (风扇|电扇), out: fan}
              - {in: (空调|暖气|地暖), out: climate}
              - {in: (音箱|音响|音乐), out: speaker}
              - {in: (屏幕|显示屏), out: display}
          shades:
            values:
              - {in: (窗帘|百叶窗|卷帘|遮阳帘), out: cover}
          period:
            values:
              - {in: (早上|上午|凌晨|早晨|清晨), out: am}
              - {in: (下午|傍晚), out: pm}
              - {in: 中午, out: noon}
              - {in: (晚上|夜里|半夜), out: night}
          day:
            values:
              - {in: 今天, out: today}
              - {in: (明天|明早), out: tomorrow}
              - {in: (周|星期|礼拜)一, out: monday}
              - {in: (周|星期|礼拜)二, out: tuesday}
              - {in: (周|星期|礼拜)三, out: wednesday}
              - {in: (周|星期|礼拜)四, out: thursday}
              - {in: (周|星期|礼拜)五, out: friday}
              - {in: (周|星期|礼拜)六, out: saturday}
              - {in: (周|星期|礼拜)(日|天), out: sunday}
          reading:
            values:
              - {in: (温度|气温), out: temperature}
              - {in: 湿度, out: humidity}
              - {in: (电量|电池), out: battery}
              - {in: 亮度, out: brightness}
              - {in: 音量, out: volume}

        expansion_rules:
          on: (打开|开启|启动|开一下|开)
          off: (关闭|关掉|关上|停掉|关一下|关)
          take: (把|将)
          of: (的|里的|里面的|那个)
          all: (所有|所有的|全部|全部的|每个)
          everywhere: (全屋|全家|家里|整个家|所有房间|每个房间|到处)
          to: (调到|调成|调整到|调节到|设到|设为|设成|设置为|设置成|设定为|改成|变成)
          bit: (一点|点|些|一些)
          open: (打开|开一下|拉开|升起|升起来|开)
          close: (关闭|关上|关掉|拉上|降下|放下|关)
          show: (看|看看|看一下|查看|显示|调出|播放)
          picture: (摄像头|画面|监控|视频|镜头|情况)
          timer: (定时器|计时器|倒计时|定时|计时)
          system: (警报|报警|安防|安防系统|报警系统|防盗系统)
          make: (设|设置|设定|定|开|新建|来|加)
          wake: (叫醒我|叫我|叫我起床|提醒我|喊我|喊我起床)
          clock: (闹钟|闹铃)
          span: >-
            ({hours}[个]小时[[零]{minutes}分[钟]]
            |{hours}[个]小时{minutes}分[钟]{seconds}秒
            |{minutes}分[钟][[零]{seconds}秒]
            |{seconds}秒[钟])

        intents:
          DeviceOn:
            data:
              - sentences:
                  - <on>[{area}[<of>]]{name}
                  - <take>[{area}[<of>]]{name}<on>
                  - '[{area}[<of>]]{name}<on>'
                requires_context: &switched
                  kind: [light, socket, fan, climate, speaker, display, camera, other]
              - sentences:
                  - <on>{area}[<of>][<all>]{group:kind}
                  - <take>{area}[<of>][<all>]{group:kind}[(都|全)]<on>
                  - '{area}[<of>][<all>]{group:kind}[(都|全)]<on>'
              - sentences:
                  - <on><everywhere>[<of>][<all>]{group:kind}
                  - <take><everywhere>[<of>][<all>]{group:kind}[(都|全)]<on>
                slots: {scope: everywhere}
              - sentences:
                  - <on>[(这里|这个房间)[的]]{group:kind}
                  - <take>{group:kind}<on>
                requires_context:
                  area: {slot: true}
          DeviceOff:
            data:
              - sentences:
                  - <off>[{area}[<of>]]{name}
                  - <take>[{area}[<of>]]{name}<off>
                  - '[{area}[<of>]]{name}<off>'
                requires_context: *switched
              - sentences:
                  - <off>{area}[<of>][<all>]{group:kind}
                  - <take>{area}[<of>][<all>]{group:kind}[(都|全)]<off>
                  - '{area}[<of>][<all>]{group:kind}[(都|全)]<off>'
              - sentences:
                  - <off><everywhere>[<of>][<all>]{group:kind}
                  - <take><everywhere>[<of>][<all>]{group:kind}[(都|全)]<off>
                slots: {scope: everywhere}
              - sentences:
                  - <off>[(这里|这个房间)[的]]{group:kind}
                  - <take>{group:kind}<off>
                requires_context:
                  area: {slot: true}
          DeviceSet:
            data:
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的][亮度]<to>{percent:value}'
                requires_context: {kind: light}
                slots: {what: brightness}
              - sentences:
                  - '[<take>]{area}[<of>][<all>](灯|灯光)[的][亮度]<to>{percent:value}'
                slots: {what: brightness, kind: light}
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的][亮度](调到|开到|调成)(最亮|最大|最高)'
                requires_context: {kind: light}
                slots: {what: brightness, value: '100'}
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的][亮度](调到|调成)一半'
                requires_context: {kind: light}
                slots: {what: brightness, value: '50'}
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的][温度]<to>{degrees:value}[摄氏]度'
                requires_context: {kind: climate}
                slots: {what: temperature}
              - sentences:
                  - '[<take>]{area}[<of>]温度<to>{degrees:value}[摄氏]度'
                slots: {what: temperature}
              - sentences:
                  - '[<take>]温度<to>{degrees:value}[摄氏]度'
                requires_context:
                  area: {slot: true}
                slots: {what: temperature}
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的](音量|声音)<to>{percent:value}'
                requires_context:
                  kind: [speaker, display]
                slots: {what: volume}
              - sentences:
                  - '[<take>][{area}[<of>]]{name}(打开到|开到|关到|<to>){percent:value}'
                requires_context: {kind: cover}
                slots: {what: position}
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的][风速]<to>{percent:value}'
                requires_context: {kind: fan}
                slots: {what: speed}
          DeviceRaise:
            data:
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的][(亮度|灯光)](调亮|亮)[<bit>]'
                requires_context: {kind: light}
                slots: {what: brightness}
              - sentences:
                  - '[<take>]{area}[<of>][<all>](灯|灯光)(调亮|亮)[<bit>]'
                slots: {what: brightness, kind: light}
              - sentences:
                  - '[<take>](灯|灯光)调亮[<bit>]'
                  - '[再](调亮|亮)<bit>'
                  - '[这里]太暗了'
                requires_context:
                  area: {slot: true}
                slots: {what: brightness, kind: light}
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的][温度](调高|升高)[<bit>]'
                requires_context: {kind: climate}
                slots: {what: temperature}
              - sentences:
                  - '[<take>]{area}[<of>]温度(调高|升高)[<bit>]'
                  - '{area}[再](暖和|暖|热)<bit>'
                slots: {what: temperature}
              - sentences:
                  - '[<take>]温度(调高|升高)[<bit>]'
                  - '[再](暖和|暖|热)<bit>'
                  - '[这里]太冷了'
                requires_context:
                  area: {slot: true}
                slots: {what: temperature}
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的](音量|声音)(调大|调高|大)[<bit>]'
                requires_context:
                  kind: [speaker, display]
                slots: {what: volume}
          DeviceLower:
            data:
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的][(亮度|灯光)](调暗|暗)[<bit>]'
                requires_context: {kind: light}
                slots: {what: brightness}
              - sentences:
                  - '[<take>]{area}[<of>][<all>](灯|灯光)(调暗|暗)[<bit>]'
                slots: {what: brightness, kind: light}
              - sentences:
                  - '[<take>](灯|灯光)调暗[<bit>]'
                  - '[再](调暗|暗)<bit>'
                  - '[这里]太亮了'
                requires_context:
                  area: {slot: true}
                slots: {what: brightness, kind: light}
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的][温度](调低|降低)[<bit>]'
                requires_context: {kind: climate}
                slots: {what: temperature}
              - sentences:
                  - '[<take>]{area}[<of>]温度(调低|降低)[<bit>]'
                  - '{area}[再](凉快|凉|冷)<bit>'
                slots: {what: temperature}
              - sentences:
                  - '[<take>]温度(调低|降低)[<bit>]'
                  - '[再](凉快|凉|冷)<bit>'
                  - '[这里]太热了'
                requires_context:
                  area: {slot: true}
                slots: {what: temperature}
              - sentences:
                  - '[<take>][{area}[<of>]]{name}[的](音量|声音)(调小|调低|小)[<bit>]'
                requires_context:
                  kind: [speaker, display]
                slots: {what: volume}
          DeviceGet:
            data:
              - sentences:
                  - '[{area}[<of>]]{name}[现在](开着|打开着|没关|打开了|开了)(吗|没有|没)'
                  - '[{area}[<of>]]{name}(有没有开|是不是开着|开没开|是开着的吗)'
                requires_context: &opened
                  kind: [cover, door, window]
                slots: {state: open}
              - sentences:
                  - '[{area}[<of>]]{name}[现在](关着|关了|关好了|关上了)(吗|没有|没)'
                  - '[{area}[<of>]]{name}(有没有关|是不是关着|关没关)[好]'
                requires_context: *opened
                slots: {state: closed}
              - sentences:
                  - '[{area}[<of>]]{name}[现在](锁着|锁了|锁好了|上锁了)(吗|没有|没)'
                  - '[{area}[<of>]]{name}(有没有锁|是不是锁着|锁没锁)[好]'
                requires_context: {kind: lock}
                slots: {state: locked}
              - sentences:
                  - '[{area}[<of>]]{name}[现在](开着|打开着|没关|打开了|开了)(吗|没有|没)'
                  - '[{area}[<of>]]{name}(有没有开|是不是开着|开没开)'
                requires_context: *switched
                slots: {state: 'on'}
              - sentences:
                  - '[{area}[<of>]]{name}[现在](关着|关了|关好了|关掉了)(吗|没有|没)'
                requires_context: *switched
                slots: {state: 'off'}
              - sentences:
                  - (布防了|<system>开着|<system>打开了|<system>开了)(吗|没有|没)
                slots: {state: armed}
              - sentences:
                  - '[{area}[<of>]]{name}[的]{reading:what}(是多少|多少|怎么样|还有多少|是几)'
              - sentences:
                  - '{area}[(里|里面)][现在][的]温度是(多少|几)度'
                  - '{area}[(里|里面)][现在][是](多少|几)度'
                  - '{area}[<of>](温度|气温)[是](多少|几度|多少度|怎么样)'
                  - '{area}[(里|里面)](热不热|冷不冷)'
                slots: {what: temperature}
              - sentences:
                  - '[(现在|室内|这里)][的](温度|气温)[是](多少|几度|多少度)'
                  - (现在|室内|这里)[是](多少|几)度
                requires_context:
                  area: {slot: true}
                slots: {what: temperature}
              - sentences:
                  - '[{area}[<of>]]{name}(怎么样了|怎么样|什么状态|的状态|状态怎么样)'
                slots: {what: state}
          DeviceOpen:
            data:
              - sentences:
                  - <open>[{area}[<of>]]{name}
                  - <take>[{area}[<of>]]{name}<open>
                  - '[{area}[<of>]]{name}<open>'
                requires_context: &moved
                  kind: [cover, door, window]
              - sentences:
                  - <open>{area}[<of>][<all>]{shades:kind}
                  - <take>{area}[<of>][<all>]{shades:kind}[(都|全)]<open>
              - sentences:
                  - <open><everywhere>[<of>][<all>]{shades:kind}
                slots: {scope: everywhere}
          DeviceClose:
            data:
              - sentences:
                  - <close>[{area}[<of>]]{name}
                  - <take>[{area}[<of>]]{name}<close>
                  - '[{area}[<of>]]{name}<close>'
                requires_context: *moved
              - sentences:
                  - <close>{area}[<of>][<all>]{shades:kind}
                  - <take>{area}[<of>][<all>]{shades:kind}[(都|全)]<close>
              - sentences:
                  - <close><everywhere>[<of>][<all>]{shades:kind}
                slots: {scope: everywhere}
          DeviceLock:
            data:
              - sentences:
                  - (锁上|锁好|锁住|锁一下|上锁|反锁|锁)[{area}[<of>]]{name}
                  - <take>[{area}[<of>]]{name}(锁上|锁好|锁住|锁了|上锁|反锁)
                requires_context: {kind: lock}
          DeviceUnlock:
            data:
              - sentences:
                  - (解锁|开锁|打开)[{area}[<of>]]{name}[的锁]
                  - <take>[{area}[<of>]]{name}(解锁|开锁|的锁打开|打开)
                  - '[{area}[<of>]]{name}(解锁|开锁)'
                requires_context: {kind: lock}
          AlarmArm:
            data:
              - sentences:
                  - (布防|开始布防|开启布防|打开布防)
                  - (打开|开启|启动)<system>
              - sentences:
                  - (离家|外出|离开)[模式]布防
                  - 我[要](出门|走)了
                slots: {mode: away}
              - sentences:
                  - (在家|居家|留守)[模式]布防
                slots: {mode: home}
              - sentences:
                  - (夜间|睡眠|晚上)[模式]布防
                slots: {mode: night}
          AlarmDisarm:
            data:
              - sentences:
                  - (撤防|解除布防|取消布防|关闭布防)
                  - (关闭|解除|取消|关掉|停用)<system>
          CallStart:
            data:
              - sentences:
                  - (呼叫|拨打|联系|接通|视频呼叫|打电话给|打给|拨给){contact}[的电话]
                  - (给|跟|和){contact}(打电话|打个电话|打视频|打个视频|视频|通话|说话|讲话)
                  - 我(要|想)(给|跟|和){contact}(打电话|通话|说话|视频)
          CallAnswer:
            data:
              - sentences:
                  - (接听|接通|接一下|接起|接)[(电话|来电|通话|视频)]
                  - (接受|同意)(来电|通话|接听)
          CallDecline:
            data:
              - sentences:
                  - (拒绝|拒接|不接|不要接|别接|忽略)[(电话|来电|通话|接听)]
                  - 转到(语音信箱|留言)
          CallEnd:
            data:
              - sentences:
                  - (挂断|挂掉|挂了|挂|结束|断开)[(电话|通话|视频)]
                  - <take>电话(挂了|挂断|挂掉)
                  - (再见|拜拜)
          CameraShow:
            data:
              - sentences:
                  - <show>{name}[<of>][<picture>]
                  - 打开{name}[<of>]<picture>
                  - 在{screen}[上](显示|看|播放|打开){name}[<of>][<picture>]
                  - <take>{name}[<of>][<picture>](投到|显示到|显示在|放到|投在|切到){screen}[上]
                  - (谁在|什么人在|有人在|有谁在){name}[吗]
                  - '{name}(有人吗|是谁|有什么情况)'
                requires_context: {kind: camera}
          TimerSet:
            data:
              - sentences:
                  - <span>[之|以]后(提醒我|叫我|通知我|叫醒我)
                  - <make>[一]个<span>[的]<timer>
                  - (定时|计时|倒计时|倒数)<span>
                  - <make><timer><span>
              - sentences:
                  - 半[个]小时[之|以]后(提醒我|叫我|通知我|叫醒我)
                  - <make>[一]个半[个]小时[的]<timer>
                  - (定时|计时|倒计时|倒数)半[个]小时
                slots: {minutes: '30'}
              - sentences:
                  - '{hours}个半小时[之|以]后(提醒我|叫我|通知我|叫醒我)'
                  - (定时|计时|倒计时|倒数){hours}个半小时
                slots: {minutes: '30'}
              - sentences:
                  - 一刻钟[之|以]后(提醒我|叫我|通知我|叫醒我)
                  - (定时|计时|倒计时|倒数)一刻钟
                slots: {minutes: '15'}
          TimerCancel:
            data:
              - sentences:
                  - (取消|停止|删除|关闭|关掉|结束|清除)[(这个|那个|我的)]<timer>
                  - <take><timer>(取消|停了|停掉|删了|关了|关掉)
                  - (取消|删除){minutes}分钟[的]<timer>
              - sentences:
                  - (取消|停止|删除|关闭|清除)<all><timer>
                slots: {count: all}
          TimerQuery:
            data:
              - sentences:
                  - <timer>还(有|剩|剩下)(多久|多长时间|多少时间|几分钟|多少分钟|多少秒)
                  - 还(有|剩|剩下)(多久|多长时间|多少时间|几分钟)
                  - (查看|看看|查询)<timer>
          TimerPause:
            data:
              - sentences:
                  - 暂停[(这个|那个|我的)]<timer>
                  - <take><timer>暂停[一下]
                  - <timer>(暂停|先停一下)
          TimerResume:
            data:
              - sentences:
                  - (继续|恢复|重新开始)[(这个|那个|我的)]<timer>
                  - <timer>(继续|恢复)
                  - <take><timer>(继续|恢复)
          AlarmSet:
            data:
              - sentences:
                  - '[{day}][{period}]{hour}点[钟][的时候]<wake>'
                  - '[{day}][{period}]{hour}点{minute}[分][的时候]<wake>'
                  - <make>[一]个[{day}][{period}]{hour}点[钟][的]<clock>
                  - <make>[一]个[{day}][{period}]{hour}点{minute}[分][的]<clock>
                  - <make><clock>[到][{day}][{period}]{hour}点[{minute}[分]]
              - sentences:
                  - '[{day}][{period}]{hour}点半[的时候]<wake>'
                  - <make>[一]个[{day}][{period}]{hour}点半[的]<clock>
                slots: {minute: '30'}
              - sentences:
                  - '[{day}][{period}]{hour}点一刻[的时候]<wake>'
                  - <make>[一]个[{day}][{period}]{hour}点一刻[的]<clock>
                slots: {minute: '15'}
              - sentences:
                  - '[{day}][{period}]{hour}点三刻[的时候]<wake>'
                  - <make>[一]个[{day}][{period}]{hour}点三刻[的]<clock>
                slots: {minute: '45'}
          AlarmCancel:
            data:
              - sentences:
                  - (取消|删除|关闭|关掉|清除)[{day}][{period}][{hour}点][的]<clock>
                  - <take>[{day}][{period}][{hour}点][的]<clock>(取消|删了|关了|关掉|删除)
                  - '[{day}](不用|别)(叫我|叫醒我)[起床][了]'
              - sentences:
                  - (取消|删除|关闭|清除)<all><clock>
                slots: {count: all}
          TimeGet:
            data:
              - sentences:
                  - '[(现在|告诉我|请问)][现在]几点[(了|钟|钟了)]'
                  - (现在|告诉我)[的]时间[是][多少]
                  - (报时|什么时间了|现在什么时间|现在是几点)
          DateGet:
            data:
              - sentences:
                  - 今天[是](几号|几月几号|几月几日|星期几|礼拜几|周几|什么日子|多少号)
                  - (现在|今天)[的]日期[是][多少]
                  - (几号了|星期几了|今天周几了|告诉我日期)
          VolumeSet:
            data:
              - sentences:
                  - '[<take>](音量|声音)<to>{percent:value}'
                  - 音量{percent:value}
              - sentences:
                  - '[<take>](音量|声音)(调到|开到|设为)(最大|最高)'
                  - (最大音量|音量最大)
                slots: {value: '100'}
              - sentences:
                  - (静音|关闭声音|关掉声音|把声音关了|把声音关掉)
                slots: {value: '0'}
          VolumeUp:
            data:
              - sentences:
                  - '[<take>](声音|音量)(大一点|大点|大些|调大|调高|调大一点|调高一点|调大点|增大|再大一点)'
                  - (大声一点|大声点|大点声|大一点声|听不清楚|听不见)
                  - (增大|提高|调大|调高)(音量|声音)
          VolumeDown:
            data:
              - sentences:
                  - '[<take>](声音|音量)(小一点|小点|小些|调小|调低|调小一点|调低一点|调小点|减小|再小一点)'
                  - (小声一点|小声点|小点声|小一点声|太吵了|太大声了)
                  - (减小|降低|调小|调低)(音量|声音)
          Stop:
            data:
              - sentences:
                  - (停|停止|停下|停下来|停一下|别说了|不要说了|闭嘴|安静|别响了|够了|别放了)
                  - 停止(播放|响铃|说话)
          Repeat:
            data:
              - sentences:
                  - (再说一遍|再说一次|重复|重复一遍|重说一遍|再来一遍|再来一次)
                  - '[我]没听(清|清楚|见)'
                  - (你说什么|你刚才说什么|什么)
          Help:
            data:
              - sentences:
                  - (帮助|帮帮我|救助|使用说明)
                  - 你(会|能)(什么|做什么|干什么|做些什么)
                  - (我能说什么|我可以说什么|怎么用|怎么使用|有什么功能|有哪些命令)
          Yes:
            data:
              - sentences:
                  - (是|是的|对|对的|好|好的|可以|行|确定|确认|没错|没问题|嗯|当然|要)
                  - (就这样|就这么办|去做|执行|同意)
          No:
            data:
              - sentences:
                  - (不|不是|不要|不行|不对|不可以|否|错了|别|不好|没有|不同意)
                  - (不是这个|都不是|不是的|不确定)
          Cancel:
            data:
              - sentences:
                  - (取消|算了|没事|没事了|没什么|不用了|当我没说|忽略它|退出|放弃)
        """#
}
