"""The messages of etcd's wire API, made from wire.proto: see tools/generate_etcd_stubs.py."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory

_FILE = (
    b'\n holdfast/engines/etcd/wire.proto\x12\rhold'
    b'fast.etcd"\x85\x01\n\x0eResponseHeader\x12\x1d\n\ncluster_'
    b'id\x18\x01 \x01(\x04R\tclusterId\x12\x1b\n\tmember_id\x18\x02 \x01(\x04R\x08'
    b'memberId\x12\x1a\n\x08revision\x18\x03 \x01(\x03R\x08revision\x12\x1b\n\t'
    b'raft_term\x18\x04 \x01(\x04R\x08raftTerm"\xae\x01\n\x08KeyValue\x12\x10'
    b"\n\x03key\x18\x01 \x01(\x0cR\x03key\x12'\n\x0fcreate_revision\x18\x02 \x01("
    b'\x03R\x0ecreateRevision\x12!\n\x0cmod_revision\x18\x03 \x01(\x03R'
    b'\x0bmodRevision\x12\x18\n\x07version\x18\x04 \x01(\x03R\x07version\x12\x14'
    b'\n\x05value\x18\x05 \x01(\x0cR\x05value\x12\x14\n\x05lease\x18\x06 \x01(\x03R\x05lea'
    b'se"\x86\x05\n\x0cRangeRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x1b\n'
    b'\trange_end\x18\x02 \x01(\x0cR\x08rangeEnd\x12\x14\n\x05limit\x18\x03 \x01('
    b'\x03R\x05limit\x12\x1a\n\x08revision\x18\x04 \x01(\x03R\x08revision\x12D\n\n'
    b'sort_order\x18\x05 \x01(\x0e2%.holdfast.etcd.RangeRe'
    b'quest.SortOrderR\tsortOrder\x12G\n\x0bsort_targe'
    b't\x18\x06 \x01(\x0e2&.holdfast.etcd.RangeRequest.Sor'
    b'tTargetR\nsortTarget\x12"\n\x0cserializable\x18\x07 \x01('
    b'\x08R\x0cserializable\x12\x1b\n\tkeys_only\x18\x08 \x01(\x08R\x08keys'
    b'Only\x12\x1d\n\ncount_only\x18\t \x01(\x08R\tcountOnly\x12(\n\x10m'
    b'in_mod_revision\x18\n \x01(\x03R\x0eminModRevision\x12(\n'
    b'\x10max_mod_revision\x18\x0b \x01(\x03R\x0emaxModRevision\x12'
    b'.\n\x13min_create_revision\x18\x0c \x01(\x03R\x11minCreateR'
    b'evision\x12.\n\x13max_create_revision\x18\r \x01(\x03R\x11ma'
    b'xCreateRevision".\n\tSortOrder\x12\x08\n\x04NONE\x10\x00\x12\n'
    b'\n\x06ASCEND\x10\x01\x12\x0b\n\x07DESCEND\x10\x02"B\n\nSortTarget\x12\x07\n'
    b'\x03KEY\x10\x00\x12\x0b\n\x07VERSION\x10\x01\x12\n\n\x06CREATE\x10\x02\x12\x07\n\x03MOD\x10\x03'
    b'\x12\t\n\x05VALUE\x10\x04"\x9b\x01\n\rRangeResponse\x125\n\x06header\x18'
    b'\x01 \x01(\x0b2\x1d.holdfast.etcd.ResponseHeaderR\x06he'
    b'ader\x12)\n\x03kvs\x18\x02 \x03(\x0b2\x17.holdfast.etcd.KeyVal'
    b'ueR\x03kvs\x12\x12\n\x04more\x18\x03 \x01(\x08R\x04more\x12\x14\n\x05count\x18\x04 \x01'
    b'(\x03R\x05count"\xa9\x01\n\nPutRequest\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03k'
    b'ey\x12\x14\n\x05value\x18\x02 \x01(\x0cR\x05value\x12\x14\n\x05lease\x18\x03 \x01(\x03R'
    b'\x05lease\x12\x17\n\x07prev_kv\x18\x04 \x01(\x08R\x06prevKv\x12!\n\x0cignor'
    b'e_value\x18\x05 \x01(\x08R\x0bignoreValue\x12!\n\x0cignore_lea'
    b'se\x18\x06 \x01(\x08R\x0bignoreLease"v\n\x0bPutResponse\x125\n\x06'
    b'header\x18\x01 \x01(\x0b2\x1d.holdfast.etcd.ResponseHea'
    b'derR\x06header\x120\n\x07prev_kv\x18\x02 \x01(\x0b2\x17.holdfast.'
    b'etcd.KeyValueR\x06prevKv"\\\n\x12DeleteRangeRequ'
    b'est\x12\x10\n\x03key\x18\x01 \x01(\x0cR\x03key\x12\x1b\n\trange_end\x18\x02 \x01(\x0c'
    b'R\x08rangeEnd\x12\x17\n\x07prev_kv\x18\x03 \x01(\x08R\x06prevKv"\x9a\x01\n\x13'
    b'DeleteRangeResponse\x125\n\x06header\x18\x01 \x01(\x0b2\x1d.ho'
    b'ldfast.etcd.ResponseHeaderR\x06header\x12\x18\n\x07de'
    b'leted\x18\x02 \x01(\x03R\x07deleted\x122\n\x08prev_kvs\x18\x03 \x03(\x0b2\x17'
    b'.holdfast.etcd.KeyValueR\x07prevKvs"\xeb\x03\n\x07Com'
    b'pare\x12<\n\x06result\x18\x01 \x01(\x0e2$.holdfast.etcd.Com'
    b'pare.CompareResultR\x06result\x12<\n\x06target\x18\x02 \x01'
    b'(\x0e2$.holdfast.etcd.Compare.CompareTarget'
    b'R\x06target\x12\x10\n\x03key\x18\x03 \x01(\x0cR\x03key\x12\x1a\n\x07version\x18\x04 '
    b'\x01(\x03H\x00R\x07version\x12)\n\x0fcreate_revision\x18\x05 \x01(\x03H'
    b'\x00R\x0ecreateRevision\x12#\n\x0cmod_revision\x18\x06 \x01(\x03H'
    b'\x00R\x0bmodRevision\x12\x16\n\x05value\x18\x07 \x01(\x0cH\x00R\x05value\x12\x16'
    b'\n\x05lease\x18\x08 \x01(\x03H\x00R\x05lease\x12\x1b\n\trange_end\x18@ \x01('
    b'\x0cR\x08rangeEnd"@\n\rCompareResult\x12\t\n\x05EQUAL\x10\x00\x12'
    b'\x0b\n\x07GREATER\x10\x01\x12\x08\n\x04LESS\x10\x02\x12\r\n\tNOT_EQUAL\x10\x03"G\n'
    b'\rCompareTarget\x12\x0b\n\x07VERSION\x10\x00\x12\n\n\x06CREATE\x10\x01\x12'
    b'\x07\n\x03MOD\x10\x02\x12\t\n\x05VALUE\x10\x03\x12\t\n\x05LEASE\x10\x04B\x0e\n\x0ctarget'
    b'_union"\xad\x02\n\tRequestOp\x12B\n\rrequest_range\x18\x01 '
    b'\x01(\x0b2\x1b.holdfast.etcd.RangeRequestH\x00R\x0crequ'
    b'estRange\x12<\n\x0brequest_put\x18\x02 \x01(\x0b2\x19.holdfast'
    b'.etcd.PutRequestH\x00R\nrequestPut\x12U\n\x14reques'
    b't_delete_range\x18\x03 \x01(\x0b2!.holdfast.etcd.Del'
    b'eteRangeRequestH\x00R\x12requestDeleteRange\x12<\n'
    b'\x0brequest_txn\x18\x04 \x01(\x0b2\x19.holdfast.etcd.TxnRe'
    b'questH\x00R\nrequestTxnB\t\n\x07request"\xbb\x02\n\nRespo'
    b'nseOp\x12E\n\x0eresponse_range\x18\x01 \x01(\x0b2\x1c.holdfast'
    b'.etcd.RangeResponseH\x00R\rresponseRange\x12?\n\x0c'
    b'response_put\x18\x02 \x01(\x0b2\x1a.holdfast.etcd.PutRe'
    b'sponseH\x00R\x0bresponsePut\x12X\n\x15response_delete'
    b'_range\x18\x03 \x01(\x0b2".holdfast.etcd.DeleteRange'
    b'ResponseH\x00R\x13responseDeleteRange\x12?\n\x0crespo'
    b'nse_txn\x18\x04 \x01(\x0b2\x1a.holdfast.etcd.TxnRespons'
    b'eH\x00R\x0bresponseTxnB\n\n\x08response"\xa6\x01\n\nTxnRequ'
    b'est\x120\n\x07compare\x18\x01 \x03(\x0b2\x16.holdfast.etcd.Com'
    b'pareR\x07compare\x122\n\x07success\x18\x02 \x03(\x0b2\x18.holdfas'
    b't.etcd.RequestOpR\x07success\x122\n\x07failure\x18\x03 \x03'
    b'(\x0b2\x18.holdfast.etcd.RequestOpR\x07failure"\x9b\x01'
    b'\n\x0bTxnResponse\x125\n\x06header\x18\x01 \x01(\x0b2\x1d.holdfast'
    b'.etcd.ResponseHeaderR\x06header\x12\x1c\n\tsucceede'
    b'd\x18\x02 \x01(\x08R\tsucceeded\x127\n\tresponses\x18\x03 \x03(\x0b2\x19.'
    b'holdfast.etcd.ResponseOpR\tresponses"K\n\x11C'
    b'ompactionRequest\x12\x1a\n\x08revision\x18\x01 \x01(\x03R\x08revi'
    b'sion\x12\x1a\n\x08physical\x18\x02 \x01(\x08R\x08physical"K\n\x12Comp'
    b'actionResponse\x125\n\x06header\x18\x01 \x01(\x0b2\x1d.holdfas'
    b't.etcd.ResponseHeaderR\x06header"5\n\x11LeaseGr'
    b'antRequest\x12\x10\n\x03TTL\x18\x01 \x01(\x03R\x03TTL\x12\x0e\n\x02ID\x18\x02 \x01(\x03'
    b'R\x02ID"\x83\x01\n\x12LeaseGrantResponse\x125\n\x06header\x18\x01 '
    b'\x01(\x0b2\x1d.holdfast.etcd.ResponseHeaderR\x06head'
    b'er\x12\x0e\n\x02ID\x18\x02 \x01(\x03R\x02ID\x12\x10\n\x03TTL\x18\x03 \x01(\x03R\x03TTL\x12\x14\n\x05'
    b'error\x18\x04 \x01(\tR\x05error"$\n\x12LeaseRevokeRequest'
    b'\x12\x0e\n\x02ID\x18\x01 \x01(\x03R\x02ID"L\n\x13LeaseRevokeResponse\x12'
    b'5\n\x06header\x18\x01 \x01(\x0b2\x1d.holdfast.etcd.Response'
    b'HeaderR\x06header"\'\n\x15LeaseKeepAliveRequest\x12'
    b'\x0e\n\x02ID\x18\x01 \x01(\x03R\x02ID"q\n\x16LeaseKeepAliveRespons'
    b'e\x125\n\x06header\x18\x01 \x01(\x0b2\x1d.holdfast.etcd.Respon'
    b'seHeaderR\x06header\x12\x0e\n\x02ID\x18\x02 \x01(\x03R\x02ID\x12\x10\n\x03TTL\x18'
    b'\x03 \x01(\x03R\x03TTL"<\n\x16LeaseTimeToLiveRequest\x12\x0e\n\x02'
    b'ID\x18\x01 \x01(\x03R\x02ID\x12\x12\n\x04keys\x18\x02 \x01(\x08R\x04keys"\xa6\x01\n\x17Lea'
    b'seTimeToLiveResponse\x125\n\x06header\x18\x01 \x01(\x0b2\x1d.h'
    b'oldfast.etcd.ResponseHeaderR\x06header\x12\x0e\n\x02I'
    b'D\x18\x02 \x01(\x03R\x02ID\x12\x10\n\x03TTL\x18\x03 \x01(\x03R\x03TTL\x12\x1e\n\ngranted'
    b'TTL\x18\x04 \x01(\x03R\ngrantedTTL\x12\x12\n\x04keys\x18\x05 \x03(\x0cR\x04key'
    b's"\x14\n\x12LeaseLeasesRequest"\x1d\n\x0bLeaseStatus\x12\x0e'
    b'\n\x02ID\x18\x01 \x01(\x03R\x02ID"\x80\x01\n\x13LeaseLeasesResponse\x125'
    b'\n\x06header\x18\x01 \x01(\x0b2\x1d.holdfast.etcd.ResponseH'
    b'eaderR\x06header\x122\n\x06leases\x18\x02 \x03(\x0b2\x1a.holdfast'
    b'.etcd.LeaseStatusR\x06leases"\xb8\x01\n\x05Event\x122\n\x04t'
    b'ype\x18\x01 \x01(\x0e2\x1e.holdfast.etcd.Event.EventTyp'
    b"eR\x04type\x12'\n\x02kv\x18\x02 \x01(\x0b2\x17.holdfast.etcd.KeyV"
    b'alueR\x02kv\x120\n\x07prev_kv\x18\x03 \x01(\x0b2\x17.holdfast.etc'
    b'd.KeyValueR\x06prevKv" \n\tEventType\x12\x07\n\x03PUT\x10\x00'
    b'\x12\n\n\x06DELETE\x10\x01"\xd2\x02\n\x12WatchCreateRequest\x12\x10\n\x03k'
    b'ey\x18\x01 \x01(\x0cR\x03key\x12\x1b\n\trange_end\x18\x02 \x01(\x0cR\x08rangeE'
    b'nd\x12%\n\x0estart_revision\x18\x03 \x01(\x03R\rstartRevisio'
    b"n\x12'\n\x0fprogress_notify\x18\x04 \x01(\x08R\x0eprogressNoti"
    b'fy\x12F\n\x07filters\x18\x05 \x03(\x0e2,.holdfast.etcd.Watc'
    b'hCreateRequest.FilterTypeR\x07filters\x12\x17\n\x07pr'
    b'ev_kv\x18\x06 \x01(\x08R\x06prevKv\x12\x19\n\x08watch_id\x18\x07 \x01(\x03R\x07w'
    b'atchId\x12\x1a\n\x08fragment\x18\x08 \x01(\x08R\x08fragment"%\n\nFi'
    b'lterType\x12\t\n\x05NOPUT\x10\x00\x12\x0c\n\x08NODELETE\x10\x01"/\n\x12Wat'
    b'chCancelRequest\x12\x19\n\x08watch_id\x18\x01 \x01(\x03R\x07watch'
    b'Id"\x16\n\x14WatchProgressRequest"\x89\x02\n\x0cWatchRequ'
    b'est\x12J\n\x0ecreate_request\x18\x01 \x01(\x0b2!.holdfast.e'
    b'tcd.WatchCreateRequestH\x00R\rcreateRequest\x12'
    b'J\n\x0ecancel_request\x18\x02 \x01(\x0b2!.holdfast.etcd.'
    b'WatchCancelRequestH\x00R\rcancelRequest\x12P\n\x10p'
    b'rogress_request\x18\x03 \x01(\x0b2#.holdfast.etcd.Wa'
    b'tchProgressRequestH\x00R\x0fprogressRequestB\x0f\n'
    b'\rrequest_union"\xb1\x02\n\rWatchResponse\x125\n\x06head'
    b'er\x18\x01 \x01(\x0b2\x1d.holdfast.etcd.ResponseHeaderR'
    b'\x06header\x12\x19\n\x08watch_id\x18\x02 \x01(\x03R\x07watchId\x12\x18\n\x07cr'
    b'eated\x18\x03 \x01(\x08R\x07created\x12\x1a\n\x08canceled\x18\x04 \x01(\x08R\x08'
    b'canceled\x12)\n\x10compact_revision\x18\x05 \x01(\x03R\x0fcomp'
    b'actRevision\x12#\n\rcancel_reason\x18\x06 \x01(\tR\x0ccanc'
    b'elReason\x12\x1a\n\x08fragment\x18\x07 \x01(\x08R\x08fragment\x12,\n\x06'
    b'events\x18\x0b \x03(\x0b2\x14.holdfast.etcd.EventR\x06even'
    b'ts"E\n\x13AuthenticateRequest\x12\x12\n\x04name\x18\x01 \x01(\tR'
    b'\x04name\x12\x1a\n\x08password\x18\x02 \x01(\tR\x08password"c\n\x14Aut'
    b'henticateResponse\x125\n\x06header\x18\x01 \x01(\x0b2\x1d.hold'
    b'fast.etcd.ResponseHeaderR\x06header\x12\x14\n\x05toke'
    b'n\x18\x02 \x01(\tR\x05token"\x0f\n\rStatusRequest"\xcb\x01\n\x0eStat'
    b'usResponse\x125\n\x06header\x18\x01 \x01(\x0b2\x1d.holdfast.et'
    b'cd.ResponseHeaderR\x06header\x12\x18\n\x07version\x18\x02 \x01'
    b'(\tR\x07version\x12\x16\n\x06dbSize\x18\x03 \x01(\x03R\x06dbSize\x12\x16\n\x06l'
    b'eader\x18\x04 \x01(\x04R\x06leader\x12\x1c\n\traftIndex\x18\x05 \x01(\x04R\t'
    b'raftIndex\x12\x1a\n\x08raftTerm\x18\x06 \x01(\x04R\x08raftTermb\x06p'
    b'roto3'
)

_pool = _descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_FILE)
DESCRIPTOR = _pool.FindFileByName('holdfast/engines/etcd/wire.proto')


def _message(name):
    return _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name[name])


ResponseHeader = _message('ResponseHeader')
KeyValue = _message('KeyValue')
RangeRequest = _message('RangeRequest')
RangeResponse = _message('RangeResponse')
PutRequest = _message('PutRequest')
PutResponse = _message('PutResponse')
DeleteRangeRequest = _message('DeleteRangeRequest')
DeleteRangeResponse = _message('DeleteRangeResponse')
Compare = _message('Compare')
RequestOp = _message('RequestOp')
ResponseOp = _message('ResponseOp')
TxnRequest = _message('TxnRequest')
TxnResponse = _message('TxnResponse')
CompactionRequest = _message('CompactionRequest')
CompactionResponse = _message('CompactionResponse')
LeaseGrantRequest = _message('LeaseGrantRequest')
LeaseGrantResponse = _message('LeaseGrantResponse')
LeaseRevokeRequest = _message('LeaseRevokeRequest')
LeaseRevokeResponse = _message('LeaseRevokeResponse')
LeaseKeepAliveRequest = _message('LeaseKeepAliveRequest')
LeaseKeepAliveResponse = _message('LeaseKeepAliveResponse')
LeaseTimeToLiveRequest = _message('LeaseTimeToLiveRequest')
LeaseTimeToLiveResponse = _message('LeaseTimeToLiveResponse')
LeaseLeasesRequest = _message('LeaseLeasesRequest')
LeaseStatus = _message('LeaseStatus')
LeaseLeasesResponse = _message('LeaseLeasesResponse')
Event = _message('Event')
WatchCreateRequest = _message('WatchCreateRequest')
WatchCancelRequest = _message('WatchCancelRequest')
WatchProgressRequest = _message('WatchProgressRequest')
WatchRequest = _message('WatchRequest')
WatchResponse = _message('WatchResponse')
AuthenticateRequest = _message('AuthenticateRequest')
AuthenticateResponse = _message('AuthenticateResponse')
StatusRequest = _message('StatusRequest')
StatusResponse = _message('StatusResponse')
